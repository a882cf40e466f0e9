/* The leases of one slot: a generation, and one word {generation, offered, taken} per reader.
 *
 * The writer offers (one more in `offered`) before it publishes the descriptor. A reader takes by compare-and-swap, only
 * if the word still carries the descriptor's generation and an offer; it drops the same way. A failed round revokes
 * offers only, while a take may race with it. A tensor that lives in the slot may be published again without new bytes
 * while older leases stand. The writer puts new bytes into the slot, under the next generation, only when every reader's
 * word is free. A dead reader's word is void: the writer clears it once the death is recorded.
 *
 * Shown: bytes never change under a lease, the slot is never rewritten while a living reader holds one, and in the end it
 * is free (the writer's last wait would otherwise be an invalid end state).
 *
 * Broken on purpose: BROKEN_NO_GENERATION (a take does not compare generations), BROKEN_IGNORES_OFFERED (rewriting waits
 * for `taken` only), BROKEN_REVOKES_TAKEN (a failed round clears `taken` as well).
 */
#define READERS 2
#define PUBLICATIONS 3

typedef Word { /* one 64-bit word: only ever read or exchanged as a whole */
  byte generation;
  byte offered;
  byte taken
}

Word word[READERS];
byte bytes;              /* the generation of the bytes in the slot; 0 while they are being written */
byte published;          /* the descriptor in the writer's line: which generation ... */
byte sequence;           /* ... and a number of its own for each publication */
byte holds[READERS];     /* leases that a living reader believes in */
bool dead[READERS];
byte consumed[READERS];  /* the last publication that each reader is through with */
bool last_one_out;

#ifdef BROKEN_IGNORES_OFFERED
#define FREE(r) (word[r].taken == 0)
#else
#define FREE(r) (word[r].offered == 0 && word[r].taken == 0)
#endif

/* A load, and a compare-and-swap that succeeds only if the word is still as loaded. */
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

/* What no longer matters is cleared, so that states which differ in it alone are one. */
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
  :: round < PUBLICATIONS ->
     round++;
     if
     :: true ->
        wait_until_free(0);
        wait_until_free(1);
        bytes = 0;
        generation++;
        bytes = generation
     :: generation > 0 /* the same tensor again, where it lies */
     fi;
     offer(0);
     offer(1);
     /* The line carries the next publication only when every reader is through with the one that passed. */
     (concluded || ((dead[0] || consumed[0] == sequence) && (dead[1] || consumed[1] == sequence)));
     atomic { published = generation; sequence = round };
     if
     :: concluded = false; /* it passes, or will; the writer goes on at once */
     :: revoke(0); revoke(1); concluded = true /* it failed */
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

/* An item that the round passed but nobody asked for: the offer goes back. */
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

/* The first reader lives, the other dies at any time or not at all. */
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
