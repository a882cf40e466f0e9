/* The barrier round: a round passes without a word that all members write.
 *
 * A rank arrives by moving the word of its own line to the round. A member that gives up a round first moves the word
 * of a member that has not arrived to "vetoed". Both are a compare-and-swap from the same value, so exactly one of them
 * succeeds. A member passes a round when it sees that all lines have reached it; it waits for no further message. The
 * decision word then records a failed round once, so that all members blame the same rank.
 *
 * A receiver arrives at round 1, passes it, consumes, arrives at round 2 and waits again. A writer does not wait in the
 * first round: it arrives at both rounds at once.
 *
 * A member may die between any two steps, also after it has vetoed a line and before it has recorded that. With
 * `impatient`, any waiter may give up at any time. Without it no waiter does. The search then shows that arrivals and
 * deaths alone bring every survivor its verdict, because a waiter that nothing can wake is an invalid end state.
 *
 * Broken variants:
 * - BROKEN_OWN_ROUND: a member vetoes the round that it waits for, not the lowest that has not passed.
 * - BROKEN_NO_VETO: the decision word alone fails a round.
 * - BROKEN_NO_ADOPTION: a member that finds a vetoed line leaves the decision to the member that vetoed it.
 * - BROKEN_EACH_ITS_OWN: each member blames the rank that it has seen itself, without a decision word.
 */
#define N 3
#define ROUNDS 2

byte line[N];            /* the last round each member arrived at */
byte vetoed[N];          /* the round that each member was kept out of, and ... */
byte vetoer[N];          /* ... the member that did so, counted from 1 */
byte decided;            /* the decision word: the round that failed (0: none), and ... */
byte decider;            /* ... the member that decided, counted from 1 */
bool dead[N];            /* the liveness words, marked by the kernel */
bool impatient;
bool passed[ROUNDS + 1]; /* what some member concluded about each round */
bool failed[ROUNDS + 1];
byte blamer;             /* the member whose decision the failed members follow */

#define ALL_REACHED(r) (line[0] >= (r) && line[1] >= (r) && line[2] >= (r))
#define LOST_BEFORE(r) ((dead[0] && line[0] < (r)) || (dead[1] && line[1] < (r)) || (dead[2] && line[2] < (r)))

inline note_pass(r) {
  passed[r] = true;
  assert(ALL_REACHED(r)); /* no member passes a round that another has not reached */
  assert(!failed[r])      /* or one that another member fails */
}

/* Obeys the decision word: fails its round and all later rounds that this member waits for. */
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
  assert(blamer == 0 || blamer == decider); /* all follow the same decision */
  blamer = decider
#endif
}

inline set_once(r, who) {
  if
  :: decided == 0 -> decided = r; decider = who
  :: else
  fi
}

/* Arrives, unless another member has vetoed it. */
inline arrive(r) {
  if
  :: d_step { vetoed[me] == 0 -> line[me] = r }
  :: d_step { vetoed[me] != 0 -> set_once(vetoed[me], vetoer[me]); stopped = true }
  fi
}

/* Waits for the lowest round that this member has not passed. Loads one line per step. A member that has reached a round
 * never goes back, so its line is not loaded again. */
#define NEXT (mine + 1)

#ifdef BROKEN_OWN_ROUND
#define FAILS target
#else
#define FAILS NEXT
#endif

inline await(target) {
  do
  :: d_step { mine >= target -> arrived = 0 }; break
  :: d_step { mine < target && arrived < N && line[arrived] >= NEXT -> arrived++ }
  :: d_step { mine < target && arrived == N -> note_pass(NEXT); mine++; arrived = 0 }
  /* A decision about a round implies that all earlier rounds pass, so the member looks at those again first. */
  :: d_step {
       mine < target && decided != 0 && decided == NEXT -> note_failure(target); arrived = 0; stopped = true
     }; break
  /* Gives up because a member died before the round or is late: chooses a member that has not arrived. */
  :: d_step {
       mine < target && decided == 0 && victim == N && arrived < N && line[arrived] < NEXT &&
       (impatient || LOST_BEFORE(NEXT)) -> victim = arrived
     }
#ifdef BROKEN_NO_VETO
  :: d_step { victim < N -> set_once(FAILS, me + 1); victim = N }
#else
  :: d_step { victim < N && vetoed[victim] == 0 && line[victim] >= FAILS -> victim = N } /* it has arrived meanwhile */
  :: d_step { victim < N && vetoed[victim] == 0 && line[victim] < FAILS ->
       vetoed[victim] = FAILS; vetoer[victim] = me + 1 }
#ifdef BROKEN_NO_ADOPTION
  :: d_step { victim < N && vetoed[victim] != 0 && vetoer[victim] == me + 1 ->
#else
  :: d_step { victim < N && vetoed[victim] != 0 ->
#endif
#ifdef BROKEN_EACH_ITS_OWN
       decided = vetoed[victim]; note_failure(target); victim = N; arrived = 0; stopped = true }; break
#else
       set_once(vetoed[victim], vetoer[victim]); victim = N }
#endif
#endif
  od
}

proctype Member(byte me; bool writes) {
  byte mine;         /* rounds that it has passed */
  byte arrived;      /* number of members seen at the next round, counted from member 0 */
  byte other;
  byte victim = N;   /* member that it is about to veto; N: none */
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
  } unless { d_step { dead[me] -> arrived = 0; other = 0; victim = N; stopped = false } }
}

/* Kills members at any time and stops at any time. A member that still waits then can expect no further event. */
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
