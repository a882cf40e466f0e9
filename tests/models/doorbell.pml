/* The doorbell: sleeping and waking without a lost wake-up, and without a system call when nobody sleeps.
 *
 * The waiter announces (sets SLEEP in its doorbell by read-modify-write), then checks what it waits for, then sleeps on the
 * exact value it announced with. A waker changes the condition first and loads the doorbell after it; if SLEEP is set it
 * moves the doorbell on, which clears SLEEP, and wakes. A waker may die between any two steps; the watchdog rings for the dead.
 * Every step is sequentially consistent, as the read-modify-writes of the implementation are.
 *
 * A wake-up that is lost leaves the waiter blocked for ever: an invalid end state. The slices in which the implementation
 * sleeps are left out on purpose, as they would hide it.
 *
 * Broken on purpose: BROKEN_DOORBELL_FIRST (a waker loads the doorbell before it changes the condition; what a store buffer does
 * to a plain release store looks the same), BROKEN_CHECK_FIRST (the waiter checks before it announces),
 * BROKEN_NO_BUMP (a waker wakes without moving the doorbell on), BROKEN_WATCHDOG_TRUSTS_BIT (for a death too, the doorbell rings
 * only if SLEEP is set).
 */
#define WAKERS 2
#define ROUNDS 2
#define SLEEP 1
#define STEP 2

byte doorbell;               /* SLEEP bit, and a number that every ring moves on */
bool asleep;             /* the kernel's queue for the doorbell's address */
byte line[WAKERS];       /* the condition: the last round each waker arrived at */
bool dead[WAKERS];
byte met;                /* the waiter uses one doorbell for one barrier round after the other */

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
  :: met < ROUNDS ->
     do
#ifdef BROKEN_CHECK_FIRST
     :: if
        :: READY(met + 1) -> break
        :: else
        fi;
        d_step { doorbell = doorbell | SLEEP; announced = doorbell };
#else
     :: d_step { doorbell = doorbell | SLEEP; announced = doorbell };
        if
        :: READY(met + 1) -> break
        :: else
        fi;
#endif
        /* FUTEX_WAIT compares and queues in one step, or returns at once. */
        d_step {
          asleep = (doorbell == announced);
          announced = 0
        };
        !asleep
     od;
     doorbell = doorbell & ~SLEEP;
     announced = 0;
     met++
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

/* Lets wakers die at any time, or no more; what the watchdog does for the dead comes after the record. The dead may have moved the
 * doorbell on, and so cleared SLEEP, without coming to the wake: the watchdog wakes whatever the doorbell says. */
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
