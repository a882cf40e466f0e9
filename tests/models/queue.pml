/* A message queue from its making to the next one in the same block: attaching, writing over, closing, leaving, dying.
 *
 * A writer makes a queue in a free block, writes MESSAGES into CHUNKS places, closes and goes. Readers learn the block's
 * life by a handle, take their place by compare-and-swap, then look once more whether the writer is still there. Writer and
 * readers may die between any two steps. A collector judges the block to be over and makes another queue in it, which
 * has readers of its own.
 *
 * What holds: a reader that has attached never finds its block in another life, and its place is its own; it sees every
 * message once, in order, up to the end or to the writer's death; a chunk is not written over before every attached
 * reader has taken it; a writer that has closed is waited for by nobody for ever.
 *
 * Broken on purpose: BROKEN_READERS_FIRST (the collector looks at the readers before the writer), BROKEN_NO_USE (a place does
 * not say which queue it belongs to), BROKEN_NO_SECOND_LOOK (a reader does not look at the writer again),
 * BROKEN_FORGETS_NEWCOMER (the writer waits only for readers that have attached), BROKEN_RETREATS_BLINDLY (a reader that finds
 * the writer gone gives back a place that may belong to the next queue by now).
 */
#define READERS 2
#define MESSAGES 3
#define CHUNKS 2

#define FREE 0
#define TAKEN 1
#define CLOSED 2
#define GONE 3

byte life = 1;                /* of the block: the number of the queue that is in it */
byte state[READERS + 1];      /* of the ends, the writer's first */
byte use[READERS + 1];        /* the queue that a place belongs to */
bool dead[READERS + 1];
byte number[CHUNKS];          /* of the message in each chunk */
byte cursor[READERS + 1];     /* messages taken */
bool attached[READERS + 1];
bool is_new;                  /* the next queue is ready */
byte ended;                   /* readers that have */

/* Only of a reader that holds a place is anything expected, or one who may still come. */
#ifdef BROKEN_FORGETS_NEWCOMER
#define IN_THE_WAY(r, n) (state[r] == TAKEN && cursor[r] + CHUNKS < (n))
#else
#define IN_THE_WAY(r, n) (state[r] != CLOSED && !dead[r] && cursor[r] + CHUNKS < (n))
#endif
#define HAS_ROOM(n) (!IN_THE_WAY(1, n) && !IN_THE_WAY(2, n))

proctype Writer() {
  byte next = 1;
  {
    do
    :: next <= MESSAGES ->
       HAS_ROOM(next);
       /* The chunk's bytes are the message from here on: nobody may still be reading what stood there. */
       number[(next - 1) % CHUNKS] = next;
       next++
    :: else -> break
    od;
    state[0] = CLOSED;
    /* The last handle goes: at any time, readers or not. */
    state[0] = GONE
  } unless { dead[0] }
}

/* The handle says queue 1. Whoever comes late finds its block in another life, or its writer gone. */
proctype Reader(byte me) {
  byte next = 1;
  {
    if
    :: life != 1 -> goto out
    :: else
    fi;
    /* Compare-and-swap on the place's word, which says state and queue at once. */
    atomic {
      if
#ifdef BROKEN_NO_USE
      :: state[me] == FREE -> state[me] = TAKEN
#else
      :: state[me] == FREE && use[me] == 1 -> state[me] = TAKEN
#endif
      :: else -> goto out
      fi
    };
#ifndef BROKEN_NO_SECOND_LOOK
    if
    :: state[0] == GONE || dead[0] ->
#ifdef BROKEN_RETREATS_BLINDLY
       state[me] = CLOSED;
#else
       atomic {
         if
         :: state[me] == TAKEN && use[me] == 1 -> state[me] = CLOSED
         :: else
         fi
       };
#endif
       goto out
    :: else
    fi;
#endif
    attached[me] = true;
    assert(use[me] == 1);
    do
    :: number[(next - 1) % CHUNKS] >= next ->
       /* In place: what stands there must be this message until it is taken. */
       assert(life == 1);
       assert(number[(next - 1) % CHUNKS] == next);
       next++;
       cursor[me] = next - 1
    :: number[(next - 1) % CHUNKS] < next && (state[0] == CLOSED || state[0] == GONE) ->
       if
       :: number[(next - 1) % CHUNKS] < next -> break
       :: else
       fi
    :: number[(next - 1) % CHUNKS] < next && dead[0] ->
       if
       :: number[(next - 1) % CHUNKS] < next -> goto lost
       :: else
       fi
    od;
    assert(next == MESSAGES + 1);
lost:
    assert(life == 1);
    attached[me] = false;
    state[me] = CLOSED
  } unless { dead[me] };
out:
  ended++
}

/* Over: the writer has gone and nobody holds a place. The writer is looked at first. */
proctype Collector() {
  byte i;
#ifdef BROKEN_READERS_FIRST
  (state[1] != TAKEN || dead[1]);
  (state[2] != TAKEN || dead[2]);
  (state[0] == GONE || dead[0]);
#else
  (state[0] == GONE || dead[0]);
  (state[1] != TAKEN || dead[1]);
  (state[2] != TAKEN || dead[2]);
#endif
  /* Another queue moves in: its ends, its chunks. */
  life = 2;
  i = 0;
  do
  :: i <= READERS ->
     assert(!attached[i] || dead[i]);
     atomic { use[i] = 2; state[i] = FREE; cursor[i] = 0 };
     i++
  :: else -> break
  od;
  atomic { number[0] = 0; number[1] = 0 };
  is_new = true
}

/* The next queue's places stay free for its own readers. */
proctype Heir() {
  is_new && ended == READERS;
  assert(state[1] == FREE && state[2] == FREE)
}

/* One of them dies, or nobody. */
proctype Reaper() {
  if
  :: dead[0] = true
  :: dead[1] = true
  :: dead[2] = true
  :: skip
  fi
}

init {
  atomic {
    use[0] = 1;
    use[1] = 1;
    use[2] = 1;
    state[0] = TAKEN;
    run Writer();
    run Reader(1);
    run Reader(2);
    run Collector();
    run Heir();
    run Reaper()
  }
}
