/* The meeting: one decision word that settles two rounds for all members of a group.
 *
 * A rank arrives by storing its own round number in its own line; the number only grows. A receiver arrives at round 1,
 * waits for its verdict, consumes, arrives at round 2 and waits again. A writer of a strict gather does not wait in the
 * first round: it arrives at round 2 at once. Whoever waits may decide the lowest undecided round, never a later one.
 * FAIL at round f fails every round from f on and passes those before it.
 *
 * Any member may die between any two steps, a decider included. `impatient` lets any waiter give up at any time; without
 * it nobody does, and the search shows that arrivals and deaths alone bring every survivor its verdict: a waiter that
 * nothing can wake is an invalid end state.
 *
 * Broken on purpose: BROKEN_OWN_ROUND (FAIL is set for the round one waits for), BROKEN_NO_WORD (each rank judges for
 * itself), BROKEN_ARRIVAL_FIRST (arrival is read before the life token).
 */
#define N 3
#define ROUNDS 2

mtype = { everyone_came, someone_late, someone_died };

byte decided;            /* the decision word: the last settled round ... */
bool broken;             /* ... and whether it failed; read and exchanged as one */
byte line[N];            /* the last round each member arrived at */
bool dead[N];            /* the life tokens, marked by the kernel */
bool impatient;
bool passed[ROUNDS + 1]; /* what any member concluded about each round */
bool failed[ROUNDS + 1];

#define ALL_REACHED(r) (line[0] >= (r) && line[1] >= (r) && line[2] >= (r))
#define LOST_BEFORE(r) ((dead[0] && line[0] < (r)) || (dead[1] && line[1] < (r)) || (dead[2] && line[2] < (r)))

inline note(r, pass) {
  if
  :: pass ->
     passed[r] = true;
     assert(ALL_REACHED(r)) /* nobody passes a round that a member has not reached */
  :: else -> failed[r] = true
  fi;
  assert(!(passed[r] && failed[r])) /* nobody passes what another fails */
}

/* Looks at every other member, one per turn. The token is read first and the arrival after it: who arrived and then died
 * has arrived. Every guarded d_step is one access to the shared memory. */
#ifdef BROKEN_ARRIVAL_FIRST
#define FIRST_LOOK hint = (line[other] >= next)
#define SECOND_LOOK gone = dead[other]; came = hint
#else
#define FIRST_LOOK hint = dead[other]
#define SECOND_LOOK came = (line[other] >= next); gone = hint
#endif

#define SURVEYED (next > 0 && other == N)
#define GIVES_UP (found == someone_died || (found == someone_late && impatient))

inline start_survey(round) {
  next = round;
  found = everyone_came;
  other = (me == 0)
}

inline survey() {
  if
  :: d_step { !looked -> FIRST_LOOK; looked = true }
  :: d_step {
       looked ->
       SECOND_LOOK;
       found = (came || found == someone_died -> found : (gone -> someone_died : someone_late));
       other = other + 1 + (other + 1 == me);
       came = false;
       gone = false;
       hint = false;
       looked = false
     }
  fi
}

#ifdef BROKEN_NO_WORD

inline await(target) {
  d_step { start_survey(target) };
  do
  :: next > 0 && other < N -> survey()
  :: d_step { SURVEYED && found == everyone_came -> ok = true; note(target, true); forget() }
  :: d_step { SURVEYED && GIVES_UP -> ok = false; note(target, false); forget() }
  :: d_step { SURVEYED && found == someone_late && (ALL_REACHED(target) || LOST_BEFORE(target)) -> start_survey(target) }
  :: next == 0 -> break
  od
}

#else

/* One compare-and-swap, from the word as this rank saw it when it began to look around. */
inline judge(round, verdict) {
  if
  :: decided == next - 1 && !broken ->
     /* A failure that blames a death is true: some dead member never reached the round. */
     assert(!verdict || found != someone_died || LOST_BEFORE(next));
     decided = round;
     broken = verdict
  :: else
  fi;
  forget()
}

#ifdef BROKEN_OWN_ROUND
#define FAILS_ROUND(target) target
#else
#define FAILS_ROUND(target) next
#endif

inline await(target) {
  do
  :: d_step {
       next == 0 && (broken || decided >= target) ->
       other = 1;
       do
       :: other <= target ->
          ok = (broken -> other < decided : other <= decided);
          note(other, ok);
          other++
       :: else -> break
       od;
       other = 0
     };
     break
  :: d_step { next == 0 && !broken && decided < target -> start_survey(decided + 1) }
  :: next > 0 && other < N -> survey()
  :: d_step { SURVEYED && found == everyone_came -> judge(next, false) }
  :: d_step { SURVEYED && GIVES_UP -> judge(FAILS_ROUND(target), true) }
  /* Asleep until the word moves, all have arrived, or somebody died. */
  :: d_step {
       SURVEYED && found == someone_late &&
       (broken || decided != next - 1 || ALL_REACHED(next) || LOST_BEFORE(next)) ->
       forget()
     }
  od
}

#endif

/* What no longer matters is cleared, so that states which differ in it alone are one. */
inline forget() {
  next = 0;
  other = 0;
  found = 0
}

proctype Member(byte me; bool writes) {
  byte next, other; /* the round under decision, and the member looked at; 0: not looking */
  mtype found;
  bool hint, looked, came, gone, ok;
  {
    if
    :: writes -> line[me] = 2; await(2)
    :: else ->
       line[me] = 1;
       await(1);
       if
       :: d_step { ok -> ok = false; line[me] = 2 };
          await(2)
       :: else
       fi
    fi;
    ok = false
  } unless { d_step { dead[me] -> forget(); hint = false; looked = false; ok = false } }
}

/* Kills members at any time, and stops doing so at any time: who still waits then has nothing more to hope for. */
proctype Fate() {
  do
  :: !dead[0] -> dead[0] = true
  :: !dead[1] -> dead[1] = true
  :: !dead[2] -> dead[2] = true
  :: break
  od
}

init {
  atomic {
    if
    :: impatient = true
    :: impatient = false
    fi;
    run Fate();
    run Member(0, false);
    if
    :: run Member(1, true)
    :: run Member(1, false)
    fi;
    run Member(2, true)
  }
}
