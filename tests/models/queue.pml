/* A message queue, from its creation to the next queue in the same block: attaching, overwriting, closing, leaving,
 * dying.
 *
 * A writer creates a queue in a free block, writes MESSAGES messages into CHUNKS chunks, closes and leaves. Readers
 * learn the use number of the block from a handle, take their endpoint by compare-and-swap, and then check again that
 * the writer is still there. Writer and readers may die between any two steps. A collector finds that the queue is over
 * and creates another queue in the block, which has its own readers.
 *
 * Properties: the block of an attached reader never changes to another use, and its endpoint belongs to no other
 * reader. A reader sees every message once and in order, up to the end or to the death of the writer. A chunk is not
 * overwritten before every attached reader has taken it. No reader waits forever for a writer that has closed.
 *
 * Broken variants:
 * - BROKEN_READERS_FIRST: the collector looks at the readers before the writer.
 * - BROKEN_NO_USE: an endpoint does not say to which queue it belongs.
 * - BROKEN_NO_SECOND_LOOK: a reader does not check the writer again.
 * - BROKEN_FORGETS_NEWCOMER: the writer waits only for readers that have attached.
 * - BROKEN_RETREATS_BLINDLY: a reader that finds the writer gone gives back an endpoint that may already belong to the
 *   next queue.
 */
#define READERS 2
#define MESSAGES 3
#define CHUNKS 2

#define FREE 0
#define TAKEN 1
#define CLOSED 2
#define GONE 3

byte block_use = 1;           /* of the block: number of the queue that is in it */
byte state[READERS + 1];      /* of the endpoints; that of the writer comes first */
byte use[READERS + 1];        /* the queue that an endpoint belongs to */
bool dead[READERS + 1];
byte number[CHUNKS];          /* number of the message in each chunk */
byte cursor[READERS + 1];     /* number of messages taken */
bool attached[READERS + 1];
bool is_new;                  /* the next queue is ready */
byte ended;                   /* number of readers that have ended */

/* The writer waits only for readers that hold an endpoint or may still take one. */
#ifdef BROKEN_FORGETS_NEWCOMER
#define IN_THE_WAY(r, n) (state[r] == TAKEN && cursor[r] + CHUNKS < (n))
#else
#define IN_THE_WAY(r, n) (state[r] != CLOSED && !dead[r] && cursor[r] + CHUNKS < (n))
#endif
#define HAS_SPACE(n) (!IN_THE_WAY(1, n) && !IN_THE_WAY(2, n))

proctype Writer() {
  byte next = 1;
  {
    do
    :: next <= MESSAGES ->
       HAS_SPACE(next);
       /* From here on the chunk holds this message. No reader may still be reading the previous one. */
       number[(next - 1) % CHUNKS] = next;
       next++
    :: else -> break
    od;
    state[0] = CLOSED;
    /* The last handle is dropped. This may happen at any time, with or without readers. */
    state[0] = GONE
  } unless { dead[0] }
}

/* The handle names queue 1. A late reader finds another queue in the block, or the writer gone. */
proctype Reader(byte me) {
  byte next = 1;
  {
    if
    :: block_use != 1 -> goto out
    :: else
    fi;
    /* A compare-and-swap on the endpoint's word, which holds both state and queue. */
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
       /* The reader reads in place: the chunk must hold this message until it is taken. */
       assert(block_use == 1);
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
    assert(block_use == 1);
    attached[me] = false;
    state[me] = CLOSED
  } unless { dead[me] };
out:
  ended++
}

/* The queue is over when the writer is gone and no reader holds an endpoint. The collector checks the writer first. */
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
  /* Creates another queue with its endpoints and chunks. */
  block_use = 2;
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

/* Checks that the endpoints of the next queue stay free for its own readers. */
proctype NextQueue() {
  is_new && ended == READERS;
  assert(state[1] == FREE && state[2] == FREE)
}

/* Kills one of them, or none. */
proctype Faults() {
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
    run NextQueue();
    run Faults()
  }
}
