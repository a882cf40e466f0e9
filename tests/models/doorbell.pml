/* The doorbell: sleeping and waking without a lost wake-up, and without a system call when no rank sleeps.
 *
 * The waiter announces itself: it sets SLEEP in its doorbell by a read-modify-write. It then checks its condition, and
 * then sleeps on the exact value that it announced with. A waker changes the condition first and loads the doorbell
 * after it. If SLEEP is set, it moves the doorbell on, which clears SLEEP, and wakes the waiter. A waker may die
 * between any two steps; the watchdog then rings in its place. Every step is sequentially consistent, as the
 * read-modify-writes of the implementation are.
 *
 * A lost wake-up leaves the waiter blocked forever, which is an invalid end state. The implementation sleeps in
 * slices; the model leaves them out, because they would hide it.
 *
 * Broken variants:
 * - BROKEN_DOORBELL_FIRST: a waker loads the doorbell before it changes the condition. A store buffer has the same
 *   effect on a plain release store.
 * - BROKEN_CHECK_FIRST: the waiter checks before it announces itself.
 * - BROKEN_NO_BUMP: a waker wakes without moving the doorbell on.
 * - BROKEN_WATCHDOG_TRUSTS_BIT: for a dead rank, too, the doorbell rings only if SLEEP is set.
 */
#define WAKERS 2
#define ROUNDS 2
#define SLEEP 1
#define STEP 2

byte doorbell;           /* the SLEEP bit, and a number that every ring increases */
bool asleep;             /* whether the waiter is in the kernel's queue for the doorbell's address */
byte line[WAKERS];       /* the condition: the last round each waker arrived at */
bool dead[WAKERS];
byte passed;             /* rounds that have passed; one doorbell serves all of them */

#define READY(r) ((line[0] >= (r) || dead[0]) && (line[1] >= (r) || dead[1]))

inline move_on() {
#ifndef BROKEN_NO_BUMP
  d_step { doorbell = (doorbell | SLEEP) + (STEP - SLEEP) };
#endif
  asleep = false
}

inline ring(value) {
  if
  :: value & SLEEP -> move_on()
  :: else
  fi
}

proctype Waiter() {
  byte announced;
  do
  :: passed < ROUNDS ->
     do
#ifdef BROKEN_CHECK_FIRST
     :: if
        :: READY(passed + 1) -> break
        :: else
        fi;
        d_step { doorbell = doorbell | SLEEP; announced = doorbell };
#else
     :: d_step { doorbell = doorbell | SLEEP; announced = doorbell };
        if
        :: READY(passed + 1) -> break
        :: else
        fi;
#endif
        /* FUTEX_WAIT compares and queues in one step, or it returns at once. */
        d_step {
          asleep = (doorbell == announced);
          announced = 0
        };
        !asleep
     od;
     doorbell = doorbell & ~SLEEP;
     announced = 0;
     passed++
  :: else -> break
  od
}

proctype Waker(byte me) {
  byte value;
  {
    do
    :: line[me] < ROUNDS ->
#ifdef BROKEN_DOORBELL_FIRST
       value = doorbell;
       line[me]++;
#else
       line[me]++;
       value = doorbell;
#endif
       ring(value);
       value = 0
    :: else -> break
    od
  } unless { dead[me] }
}

inline ring_for_the_dead() {
#ifdef BROKEN_WATCHDOG_TRUSTS_BIT
  ring(doorbell)
#else
  move_on()
#endif
}

/* Lets wakers die at any time, and stops at any time. The watchdog rings after it has recorded the death. The dead waker
 * may have moved the doorbell on, and so cleared SLEEP, without waking the waiter. The watchdog therefore wakes it
 * whether SLEEP is set or not. */
proctype WatchdogThread() {
  do
  :: !dead[0] -> dead[0] = true; ring_for_the_dead()
  :: !dead[1] -> dead[1] = true; ring_for_the_dead()
  :: break
  od
}

init {
  atomic {
    run WatchdogThread();
    run Waiter();
    run Waker(0);
    run Waker(1)
  }
}
