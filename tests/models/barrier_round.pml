/* The barrier round: rounds that pass without a word that all write.
 *
 * A rank arrives by moving the word of its own line to the round, and who gives a round up first moves the word of a rank
 * that is not there yet to "vetoed": one compare-and-swap each, from the same value, so one of the two happens. Whoever
 * sees all lines at a round passes it; nobody waits for somebody else to say so. A failed round is then written into the
 * decision word, once, for all to blame the same. A receiver arrives at round 1, passes, consumes, arrives at round 2 and
 * waits again. A writer does not wait in the first round: it arrives at both at once.
 *
 * Any member may die between any two steps, also one that has vetoed a line and not said why. `impatient` lets any
 * waiter give up at any time; without it nobody does, and the search shows that arrivals and deaths alone bring every
 * survivor its verdict: a waiter that nothing can wake is an invalid end state.
 *
 * Broken on purpose: BROKEN_OWN_ROUND (the round one waits for is vetoed, not the lowest that has not passed),
 * BROKEN_NO_VETO (the decision word alone fails a round), BROKEN_NO_ADOPTION (who finds a line vetoed leaves it
 * to the one who did it), BROKEN_EACH_ITS_OWN (everybody blames whom it has seen, without a decision word).
 */
#define N 3
#define ROUNDS 2

byte line[N];            /* the last round each member arrived at */
byte vetoed[N];        /* the round that it was kept from, and ... */
byte vetoer[N];          /* ... by whom, counted from 1 */
byte decided;            /* the decision word: the round that failed, 0: none, and ... */
byte decider;            /* ... by whom, counted from 1 */
bool dead[N];            /* the liveness words, marked by the kernel */
bool impatient;
bool passed[ROUNDS + 1]; /* what any member concluded about each round */
bool failed[ROUNDS + 1];
byte blamer;             /* whose words those who failed were told */

#define ALL_REACHED(r) (line[0] >= (r) && line[1] >= (r) && line[2] >= (r))
#define LOST_BEFORE(r) ((dead[0] && line[0] < (r)) || (dead[1] && line[1] < (r)) || (dead[2] && line[2] < (r)))

inline note_pass(r) {
  passed[r] = true;
  assert(ALL_REACHED(r)); /* nobody passes a round that a member has not reached */
  assert(!failed[r])      /* nor one that another fails */
}

/* Obeys the decision word: fails its round and all that this member waits for after it. */
inline note_failure(last) {
  other = decided;
  do
  :: other <= last -> failed[other] = true; assert(!passed[other]); other++
  :: else -> break
  od;
  other = 0;
#ifdef BROKEN_EACH_ITS_OWN
  assert(blamer == 0 || blamer == vetoer[victim]);
  blamer = vetoer[victim]
#else
  assert(blamer == 0 || blamer == decider); /* all are told the same */
  blamer = decider
#endif
}

inline set_once(r, who) {
  if
  :: decided == 0 -> decided = r; decider = who
  :: else
  fi
}

/* Arrives, unless somebody has kept this member from it. */
inline arrive(r) {
  if
  :: d_step { vetoed[me] == 0 -> line[me] = r }
  :: d_step { vetoed[me] != 0 -> set_once(vetoed[me], vetoer[me]); stopped = true }
  fi
}

/* Looks whether all have reached the lowest round that this member has not passed: one load a step, a member that was
 * seen there is there for good. */
#define NEXT (mine + 1)

#ifdef BROKEN_OWN_ROUND
#define FAILS target
#else
#define FAILS NEXT
#endif

inline await(target) {
  do
  :: d_step { mine >= target -> came = 0 }; break
  :: d_step { mine < target && came < N && line[came] >= NEXT -> came++ }
  :: d_step { mine < target && came == N -> note_pass(NEXT); mine++; came = 0 }
  /* A decision, and all before it passes: who sees it looks once more at what came before. */
  :: d_step {
       mine < target && decided != 0 && decided == NEXT -> note_failure(target); came = 0; stopped = true
     }; break
  /* Gives up, because somebody died before the round or is late: keeps one who is not there from coming. */
  :: d_step {
       mine < target && decided == 0 && victim == N && came < N && line[came] < NEXT &&
       (impatient || LOST_BEFORE(NEXT)) -> victim = came
     }
#ifdef BROKEN_NO_VETO
  :: d_step { victim < N -> set_once(FAILS, me + 1); victim = N }
#else
  :: d_step { victim < N && vetoed[victim] == 0 && line[victim] >= FAILS -> victim = N } /* it has come meanwhile */
  :: d_step { victim < N && vetoed[victim] == 0 && line[victim] < FAILS ->
       vetoed[victim] = FAILS; vetoer[victim] = me + 1 }
#ifdef BROKEN_NO_ADOPTION
  :: d_step { victim < N && vetoed[victim] != 0 && vetoer[victim] == me + 1 ->
#else
  :: d_step { victim < N && vetoed[victim] != 0 ->
#endif
#ifdef BROKEN_EACH_ITS_OWN
       decided = vetoed[victim]; note_failure(target); victim = N; came = 0; stopped = true }; break
#else
       set_once(vetoed[victim], vetoer[victim]); victim = N }
#endif
#endif
  od
}

proctype Member(byte me; bool writes) {
  byte mine;         /* rounds that it has passed */
  byte came;         /* members before this one have been seen at the next */
  byte other;
  byte victim = N;   /* whom it keeps from coming */
  bool stopped;
  {
    arrive(1);
    if
    :: stopped
    :: !stopped && writes -> arrive(2);
       if
       :: stopped
       :: else -> await(2)
       fi
    :: !stopped && !writes -> await(1);
       if
       :: stopped
       :: else -> arrive(2);
          if
          :: stopped
          :: else -> await(2)
          fi
       fi
    fi
  } unless { d_step { dead[me] -> came = 0; other = 0; victim = N; stopped = false } }
}

/* Kills members at any time, and stops doing so at any time: who still waits then has nothing more to hope for. */
proctype Faults() {
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
    run Faults();
    run Member(0, false);
    if
    :: run Member(1, true)
    :: run Member(1, false)
    fi;
    run Member(2, true)
  }
}
