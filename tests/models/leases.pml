/* The leases of one slot: a generation, and one word {generation, offered, taken} per reader.
 *
 * The writer makes an offer (increments `offered`) before it publishes the descriptor. A reader takes a lease by
 * compare-and-swap, only if the word still has the generation of the descriptor and an offer. It drops the lease in the
 * same way. A failed round revokes only offers, while a reader may race with it. A tensor in the slot may be published
 * again with the same bytes while older leases exist. The writer puts new bytes into the slot, under the next
 * generation, only when the words of all readers are free. The word of a dead reader is void: the writer clears it once
 * the death is recorded.
 *
 * Properties: the bytes never change under a lease. The slot is never rewritten while a living reader holds a lease. In
 * the end the slot is free; otherwise the last wait of the writer would be an invalid end state.
 *
 * Broken variants:
 * - BROKEN_NO_GENERATION: a reader does not compare generations.
 * - BROKEN_IGNORES_OFFERED: rewriting waits for `taken` only.
 * - BROKEN_REVOKES_TAKEN: a failed round clears `taken` as well.
 */
#define READERS 2
#define CONTRIBUTIONS 3

typedef Word { /* one 64-bit word, read and exchanged only as a whole */
  byte generation;
  byte offered;
  byte taken
}

Word word[READERS];
byte bytes;              /* the generation of the bytes in the slot; 0 while they are being written */
byte published;          /* the descriptor in the writer's line: the generation, and ... */
byte sequence;           /* ... the number of the contribution */
byte holds[READERS];     /* leases that a living reader believes to hold */
bool dead[READERS];
byte consumed[READERS];  /* the last contribution that each reader has finished with */
bool last_one_out;

#ifdef BROKEN_IGNORES_OFFERED
#define FREE(r) (word[r].taken == 0)
#else
#define FREE(r) (word[r].offered == 0 && word[r].taken == 0)
#endif

/* Loads a word. The compare-and-swap below succeeds only if the word still has the loaded value. */
inline load(r) {
  d_step {
    old_generation = word[r].generation;
    old_offered = word[r].offered;
    old_taken = word[r].taken
  }
}

#define UNCHANGED(r) \
  (word[r].generation == old_generation && word[r].offered == old_offered && word[r].taken == old_taken)

inline store(r, new_generation, new_offered, new_taken) {
  word[r].generation = new_generation;
  word[r].offered = new_offered;
  word[r].taken = new_taken;
  forget()
}

/* Clears values that no longer matter, so that states that differ only in them become one. */
inline forget() {
  old_generation = 0;
  old_offered = 0;
  old_taken = 0
}

inline wait_until_free(r) {
  if
  :: FREE(r)
  :: d_step { dead[r] -> word[r].offered = 0; word[r].taken = 0 }
  fi
}

inline offer(r) {
  do
  :: load(r);
     if
     :: d_step { UNCHANGED(r) -> store(r, generation, old_offered + 1, old_taken) };
        break
     :: d_step { !UNCHANGED(r) -> forget() }
     fi
  od
}

#ifdef BROKEN_REVOKES_TAKEN
#define KEPT 0
#else
#define KEPT old_taken
#endif

/* Takes back one offer, unless the reader was faster. */
#define ONE_LESS old_offered - (old_offered > 0)

inline revoke(r) {
  do
  :: load(r);
     if
     :: d_step { UNCHANGED(r) -> store(r, old_generation, ONE_LESS, KEPT) };
        break
     :: d_step { !UNCHANGED(r) -> forget() }
     fi
  od
}

proctype Writer() {
  byte generation, round, old_generation, old_offered, old_taken;
  bool concluded;
  do
  :: round < CONTRIBUTIONS ->
     round++;
     if
     :: true ->
        wait_until_free(0);
        wait_until_free(1);
        bytes = 0;
        generation++;
        bytes = generation
     :: generation > 0 /* publishes the same tensor again */
     fi;
     offer(0);
     offer(1);
     /* The line gets the next contribution only when every reader has finished with the previous one. */
     (concluded || ((dead[0] || consumed[0] == sequence) && (dead[1] || consumed[1] == sequence)));
     atomic { published = generation; sequence = round };
     if
     :: concluded = false; /* the round passes or will pass; the writer goes on at once */
     :: revoke(0); revoke(1); concluded = true /* the round failed */
     fi
  :: else -> break
  od;
  last_one_out = true;
  wait_until_free(0);
  wait_until_free(1);
  assert((dead[0] || holds[0] == 0) && (dead[1] || holds[1] == 0))
}

#ifdef BROKEN_NO_GENERATION
#define ON_OFFER (old_offered > 0)
#else
#define ON_OFFER (old_offered > 0 && old_generation == wanted)
#endif

inline take() {
  do
  :: load(me);
     if
     :: d_step { !ON_OFFER -> forget() };
        break
     :: d_step { ON_OFFER && UNCHANGED(me) -> store(me, old_generation, old_offered - 1, old_taken + 1); holds[me]++; held = wanted };
        break
     :: d_step { ON_OFFER && !UNCHANGED(me) -> forget() }
     fi
  od
}

/* The round passed, but the caller did not ask for the item: the reader gives the offer back. */
inline decline() {
  do
  :: load(me);
     if
     :: d_step { !ON_OFFER -> forget() };
        break
     :: d_step { ON_OFFER && UNCHANGED(me) -> store(me, old_generation, old_offered - 1, old_taken) };
        break
     :: d_step { ON_OFFER && !UNCHANGED(me) -> forget() }
     fi
  od
}

inline drop() {
  do
  :: load(me);
     if
     :: d_step { UNCHANGED(me) -> store(me, old_generation, old_offered, old_taken - 1); holds[me]-- };
        break
     :: d_step { !UNCHANGED(me) -> forget() }
     fi
  od
}

proctype Reader(byte me) {
  byte wanted, held, seen, old_generation, old_offered, old_taken;
  {
    do
    :: d_step { sequence != seen -> wanted = published; seen = sequence };
       if
       :: take()
       :: decline()
       fi;
       atomic { consumed[me] = seen; wanted = 0 }
    :: holds[me] > 0 -> assert(bytes == held)
    :: holds[me] > 0 -> drop()
    :: last_one_out && sequence == seen && holds[me] == 0 -> break
    od
  } unless { d_step { dead[me] -> forget(); wanted = 0; held = 0; holds[me] = 0 } }
}

/* The first reader lives. The second one dies at any time, or never. */
proctype Faults() {
  if
  :: dead[1] = true
  :: true
  fi
}

init {
  atomic {
    run Faults();
    run Writer();
    run Reader(0);
    run Reader(1)
  }
}
