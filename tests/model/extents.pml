// SPDX-License-Identifier: Apache-2.0
// Extents through the ring, as core/store/writer*.cc and core/server/{extents,stock,recover}.cc pass them on: two threads
// of one process place rows of one and two cells, the broker grants, offers again, revokes and cuts; the process may die
// at any step, and the broker between any two of its own. One step here is one load, store or CAS of a shared word.
// With STUBS the second thread spills: it places a stub in an extent that rows do not use up, submits the write, and
// whichever thread finds it completed fills the stub in and publishes it, or gives it back when the write has failed.
//
// What is checked:
//  * a row is written only to cells of an extent that is HELD by the writer, and never to cells cut off;
//  * an extent is SEALED only when no row in it is in flight, so that its room may be lent to others;
//  * `used` in the region is what this process left there (else a put would fail with CACHE_ECORRUPT);
//  * when all is done nothing is HELD any more: between rows + 1 and `current` somebody sees that it is his to seal;
//  * nobody waits for ever: an answer that comes between the look at the ring and the wait ends the wait;
//  * a stub is published when its row is in the file, never before, and its extent stays HELD until then;
//  * after a death `used` and `rows` are those of the published rows, and nothing is HELD or GRANTED.
//
// Left out: columns, merging and making of runs, weak memory.
//
// RUN    -DGRANTS=1
// LONG   -DGRANTS=1 -DDEATH=1
// LONG   -DGRANTS=1 -DBROKER_DEATHS=1
// RUN    -DGRANTS=1 -DSTUBS=1
// LONG   -DGRANTS=2 -DSTUBS=1
// LONG   -DGRANTS=2 -DSTUBS=1 -DDEATH=1
// LONG   -DGRANTS=1 -DSTUBS=1 -DBROKER_DEATHS=1
// LONG   -DGRANTS=2
// LONG   -DGRANTS=2 -DDEATH=1
// BROKEN -DGRANTS=3 -DBUG_LOOK_BEFORE_COUNT  rows + 1 after the look at `current`
// BROKEN -DGRANTS=3 -DBUG_SEAL_IN_FLIGHT     retire() seals without looking at what is in flight
// BROKEN -DBUG_REVOKE_BY_STORE               revoke_granted() without a CAS
// BROKEN -DBUG_NO_MARGIN                     cut_held() down to `used` itself
// BROKEN -DGRANTS=1 -DBROKER_DEATHS=1 -DBUG_WANT_FORGOTTEN     a new broker neither reads Slot::want nor wakes
// BROKEN -DGRANTS=1 -DBUG_FUTEX_READ_LATE    the futex word is read when it was told what is wanted
// BROKEN -DGRANTS=2 -DSTUBS=1 -DBUG_STUB_AT_ONCE         a stub is published when its write is submitted
// BROKEN -DGRANTS=2 -DSTUBS=1 -DBUG_STUB_NOT_IN_FLIGHT   a stub does not count as in flight while its row is written
// BROKEN -DGRANTS=2 -DSTUBS=1 -DBUG_STUB_KEPT            the stub of a write that failed is not given back
// BROKEN -DGRANTS=1 -DDEATH=1 -DBUG_RECOVER_BY_COUNT           recovery believes the writer's `rows`
#ifndef ROWS
#define ROWS 1
#endif
#ifndef STUBS
#define STUBS 0
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef BROKER_DEATHS
#define BROKER_DEATHS 0
#endif
#define EXTENTS 2
#define CELLS 3 // of an extent
#ifndef GRANTS
#define GRANTS 2 // and revokes and cuts, together
#endif
#define NONE 9

#define FREE 0
#define GRANTED 1
#define HELD 2
#define SEALED 3

typedef Extent { byte state; byte seq; byte used; byte limit; byte rows }
typedef Held { bit open; byte chunk; byte seq; bit current; byte used; byte started; byte settled; byte rows_at_take }

Extent E[EXTENTS];
byte ring_chunk[8]; byte ring_seq[8]; byte head = 0; byte tail = 0; // head: the broker's, tail: the client's
byte want = 0;      // cells; 0: none
byte futex = 0; bit refused = 0;

bit mutex = 0; byte current[2] = NONE; // from here on private to the process; current: for rows, for stubs
Held H[EXTENTS];
byte aside_chunk = NONE; byte aside_seq = 0;
byte write_state = 0; byte write_of = NONE; byte write_at = 0; // of a row into the file: its stub
#define SUBMITTED 1
#define WRITTEN 2
#define FAILED 3

byte flying[6]; bit published[6]; bit gone[6]; bit first_of[6]; // ghosts, by cell
bit dead = 0; byte finished = 0; byte grants = 0; byte broker_deaths = 0;
bit waiting[2];
bit in_file = 0;

#define cell(chunk, at) ((chunk) * CELLS + (at))
#define in_flight(o) (H[o].started - H[o].settled - (E[H[o].chunk].rows - H[o].rows_at_take))
#define open_for_more(o) (current[0] == o || current[1] == o)
#define room(o) (E[H[o].chunk].limit > H[o].used -> E[H[o].chunk].limit - H[o].used : 0)

// A store into a cell of ours.
inline write_cell(k, at) {
    assert(E[k].state == HELD);
    assert(!gone[cell(k, at)] && !published[cell(k, at)])
}

// Writer::seal(), under the mutex
inline seal(o) {
    atomic {
        if
        :: E[H[o].chunk].state == HELD && E[H[o].chunk].seq == H[o].seq ->
           assert(flying[cell(H[o].chunk, 0)] == 0 && flying[cell(H[o].chunk, 1)] == 0 && flying[cell(H[o].chunk, 2)] == 0);
           E[H[o].chunk].state = SEALED
        :: else
        fi;
        H[o].open = 0
    }
}

inline retire(o) {
    H[o].current = 0;
    if
#ifdef BUG_SEAL_IN_FLIGHT
    :: true -> seal(o)
#else
    :: in_flight(o) == 0 -> seal(o)
    :: else
#endif
    fi
}

// Writer::try_token(): took = the object, or NONE
inline try_token(k, q, n) {
    took = NONE; stale = 1;
    if
    :: atomic { E[k].state == GRANTED && E[k].seq == q -> u = E[k].used; l = E[k].limit };
       if
       :: u + n > l -> stale = 0
       :: else ->
          x = E[k].rows;
          if
          :: atomic { E[k].state == GRANTED && E[k].seq == q -> E[k].state = HELD };
             d_step {
                 if :: !H[0].open -> took = 0 :: else -> assert(!H[1].open); took = 1 fi;
                 H[took].open = 1; H[took].chunk = k; H[took].seq = q; H[took].used = u; H[took].current = 0;
                 H[took].started = 0; H[took].settled = 0; H[took].rows_at_take = x
             }
          :: else
          fi
       fi
    :: else
    fi
}

// count_row()
inline count_row(o, at) {
    published[cell(H[o].chunk, at)] = 1;
#ifdef BUG_LOOK_BEFORE_COUNT
    was_current = H[o].current;
    atomic { flying[cell(H[o].chunk, at)] = 0; E[H[o].chunk].rows++ };
#else
    atomic { flying[cell(H[o].chunk, at)] = 0; E[H[o].chunk].rows++ };
    was_current = H[o].current;
#endif
    if
    :: !was_current ->
       atomic { !mutex -> mutex = 1 }
       if :: H[o].open && !open_for_more(o) && in_flight(o) == 0 -> seal(o) :: else fi;
       mutex = 0
    :: else
    fi
}
inline give_back(o, at, n) {
    atomic { !mutex -> mutex = 1 }
    flying[cell(H[o].chunk, at)] = 0;
    if
    :: at + n == H[o].used ->
       atomic { assert(E[H[o].chunk].used == H[o].used); E[H[o].chunk].used = at; H[o].used = at;
                first_of[cell(H[o].chunk, at)] = 0 }
    :: else // a hole, which stays a dead row
    fi;
    H[o].settled++;
    if :: H[o].open && !open_for_more(o) && in_flight(o) == 0 -> seal(o) :: else fi;
    mutex = 0
}
// Spiller: what has been written is published by whoever finds it so. Taken under the spiller's mutex.
inline reap() {
    if
    :: atomic { write_state == WRITTEN -> write_state = 0; done_of = write_of; done_at = write_at };
       write_cell(H[done_of].chunk, done_at); // fill_stub()
#ifndef BUG_STUB_AT_ONCE
       assert(in_file);
       count_row(done_of, done_at)
#endif
    :: atomic { write_state == FAILED -> write_state = 0; done_of = write_of; done_at = write_at };
#ifndef BUG_STUB_KEPT
       give_back(done_of, done_at, 1)
#endif
    :: else
    fi;
    atomic { done_of = 0; done_at = 0; was_current = 0 }
}

proctype Thread(byte t) provided (!dead) {
    byte row = 0, n, o, took, u, l, x, at, seen, other, lane, done_of = 0, done_at = 0; bit fits, stale, was_current, lost;
    lane = (STUBS -> t : 0);
    n = (STUBS -> 1 : t + 1);
    do
    :: row == ROWS -> break
    :: else ->
#if STUBS
       if :: t == 0 -> reap() :: else fi;
#endif
       atomic { !mutex -> mutex = 1 }
place: // Writer::place_in()
       fits = 0; o = current[lane];
       if :: o == NONE -> goto take :: else fi;
use:   // Writer::use()
       atomic { u = E[H[o].chunk].used; l = E[H[o].chunk].limit; assert(u == H[o].used) };
       if
       :: u + n > l -> fits = 0
       :: else ->
          write_cell(H[o].chunk, u); // the header
          if
          :: atomic { E[H[o].chunk].used == u && E[H[o].chunk].limit == l -> E[H[o].chunk].used = u + n;
                      at = u; first_of[cell(H[o].chunk, u)] = 1; flying[cell(H[o].chunk, u)] = 1; H[o].used = u + n; fits = 1 }
          :: else -> goto use
          fi
       fi;
       if :: !fits && o == current[lane] -> goto take :: else fi;
#ifdef BUG_STUB_NOT_IN_FLIGHT
       if :: fits && lane == 0 -> H[o].started++ :: else fi;
#else
       if :: fits -> H[o].started++ :: else fi;
#endif
       if
       :: o != current[lane] ->
          other = o;
          if
          :: current[lane] == NONE || room(o) > room(current[lane]) -> other = current[lane]; current[lane] = o
          :: else
          fi;
          H[current[lane]].current = 1;
          if :: other != NONE -> retire(other) :: else fi
       :: else
       fi;
       if :: !fits -> goto place :: else fi;
       mutex = 0;
#if STUBS
       if
       :: lane == 1 ->
#ifdef BUG_STUB_AT_ONCE
          assert(in_file);
          count_row(o, at);
#endif
          atomic { write_of = o; write_at = at; write_state = SUBMITTED }
          goto next
       :: else
       fi;
#endif
       // the copy
       write_cell(H[o].chunk, at);
       if :: n == 2 -> write_cell(H[o].chunk, at + 1) :: else fi;
       // publish(): another writer may have been faster
       if
       :: lost = 0
       :: lost = 1
       fi;
       if
       :: !lost -> count_row(o, at)
       :: else -> give_back(o, at, n)
       fi;
next:  skip;
       d_step { row++; u = 0; l = 0; x = 0; o = 0; at = 0; took = 0; seen = 0; other = 0; fits = 0; stale = 0; was_current = 0; lost = 0 }
    od;
#if STUBS
    write_state != SUBMITTED; // flush()
    reap();
#endif
    // the last one closes: seal_all()
    atomic { !mutex -> mutex = 1 }
    finished++;
    if
    :: finished == 2 && current[0] != NONE -> o = current[0]; current[0] = NONE; retire(o)
    :: else
    fi;
    if
    :: finished == 2 && current[1] != NONE -> o = current[1]; current[1] = NONE; retire(o)
    :: else
    fi;
    mutex = 0;
    goto end;

take:  // Writer::take(): what was set aside, then the ring
       seen = futex;
       took = NONE;
       if
       :: aside_chunk != NONE ->
          try_token(aside_chunk, aside_seq, n);
          if :: took != NONE || stale -> aside_chunk = NONE :: else fi
       :: else
       fi;
       do
       :: took == NONE && tail != head ->
          try_token(ring_chunk[tail % 8], ring_seq[tail % 8], n);
          if :: took == NONE && !stale -> atomic { aside_chunk = ring_chunk[tail % 8]; aside_seq = ring_seq[tail % 8] } :: else fi;
          d_step { ring_chunk[tail % 8] = 0; ring_seq[tail % 8] = 0; tail++ }
       :: else -> break
       od;
       if :: took != NONE -> o = took; goto use :: else fi;
       // wait_answer()
       want = n;
#ifdef BUG_FUTEX_READ_LATE
       seen = futex;
#endif
       mutex = 0;
       waiting[t] = 1;
       futex != seen;
       waiting[t] = 0;
       if :: refused -> goto next :: else fi; // CACHE_EFULL
       atomic { !mutex -> mutex = 1 }
       goto place;
end:   skip
}

inline push(k) {
    atomic { ring_chunk[head % 8] = k; ring_seq[head % 8] = E[k].seq };
    if :: head - tail < 8 -> head++ :: else fi
}
inline maybe_die() {
    if
    :: broker_deaths < BROKER_DEATHS -> broker_deaths++; goto restart
    :: true
    fi
}
// The room above `used` of a sealed extent goes to somebody: nothing of it may be in flight.
inline look_at_sealed(k) {
    assert(flying[cell(k, 0)] == 0 && flying[cell(k, 1)] == 0 && flying[cell(k, 2)] == 0)
}
inline grant(k) {
    if
    :: E[k].state == FREE -> atomic { E[k].used = 0; E[k].limit = CELLS; E[k].rows = 0 }
    :: else -> look_at_sealed(k)
    fi;
    atomic { E[k].seq++; E[k].state = GRANTED; grants++ };
    maybe_die();
    push(k);
    maybe_die()
}

active proctype Broker() {
    byte i = 0, w = 0, u = 0; bit found = 0;
    goto serve;
restart:
    i = 0; found = 0;
    do
    :: i == EXTENTS -> break
    :: else ->
       if :: E[i].state == GRANTED -> push(i) :: else fi;
       i++
    od;
    w = 0;
#ifdef BUG_WANT_FORGOTTEN
    want = 0;
#else
    futex++; // wake_all()
#endif
serve:
end:
    do
    :: dead -> break
    :: atomic { want != 0 && !dead -> w = want }; // serve_extent()
       i = 0; found = 0;
       do
       :: i == EXTENTS || found -> break
       :: else ->
          if
          :: E[i].state == GRANTED && E[i].used + w <= E[i].limit -> push(i); found = 1
          :: else
          fi;
          i++
       od;
       i = 0;
       do
       :: i == EXTENTS || found -> break
       :: else ->
          if
          :: grants < GRANTS && (E[i].state == FREE || (E[i].state == SEALED && E[i].used + w <= E[i].limit)) ->
             found = 1; grant(i)
          :: else
          fi;
          i++
       od;
       refused = !found;
       want = 0;
       maybe_die();
       futex++;
       w = 0
    :: grants == 0 && finished == 0 -> i = 0; grant(i) // stock_ahead()
    // revoke()
    :: atomic { grants < GRANTS && E[0].state == GRANTED -> i = 0; grants++ };
#ifdef BUG_REVOKE_BY_STORE
       E[i].state = (E[i].used == 0 -> FREE : SEALED)
#else
       atomic { if :: E[i].state == GRANTED -> E[i].state = (E[i].used == 0 -> FREE : SEALED) :: else fi }
#endif
    :: atomic { grants < GRANTS && E[0].state == HELD -> i = 0; u = E[0].used; grants++ };
#ifdef BUG_NO_MARGIN
       if
       :: atomic { E[0].used == u && u < E[0].limit -> E[0].limit = u }
#else
       if
       :: atomic { E[0].used == u && u + 1 < E[0].limit -> E[0].limit = u + 1 }
#endif
          d_step { i = E[0].limit; do :: i < CELLS -> assert(!flying[i] || !first_of[i]); gone[i] = 1; i++ :: else -> break od; i = 0 }
       :: else
       fi
    od;
    // recover_slot(): the process is dead
    i = 0;
    do
    :: i == EXTENTS -> break
    :: else ->
       if
       :: E[i].state == GRANTED -> E[i].state = (E[i].used == 0 -> FREE : SEALED)
       :: E[i].state == HELD ->
          d_step {
              w = 0; u = 0;
              if :: E[i].used > 0 && published[cell(i, 0)] -> w++; u = 1 :: else fi;
              if :: E[i].used > 1 && published[cell(i, 1)] -> w++; u = 2 :: else fi;
              if :: E[i].used > 2 && published[cell(i, 2)] -> w++; u = 3 :: else fi
          }
#ifndef BUG_RECOVER_BY_COUNT
          E[i].rows = w;
#endif
          E[i].used = u;
          E[i].state = SEALED
       :: else
       fi;
       i++
    od;
    skip;
    d_step {
        i = 0;
        do
        :: i == EXTENTS -> break
        :: else ->
           assert(E[i].state != HELD && E[i].state != GRANTED);
           if
           :: E[i].state == SEALED ->
              assert(E[i].rows == published[cell(i, 0)] + published[cell(i, 1)] + published[cell(i, 2)]);
              assert((E[i].used > 0 || !published[cell(i, 0)]) && (E[i].used > 1 || !published[cell(i, 1)]) &&
                     (E[i].used > 2 || !published[cell(i, 2)]))
           :: else
           fi;
           i++
        od
    }
}

#if STUBS
active proctype Disk() provided (!dead) {
end:
    do
    :: atomic { write_state == SUBMITTED -> in_file = 1; write_state = WRITTEN }
    :: atomic { write_state == SUBMITTED -> write_state = FAILED }
    od
}
#endif

active proctype Judge() {
end:
    do
    :: DEATH && !dead -> dead = 1; break
    :: timeout ->
       assert(!waiting[0] && !waiting[1]);
       assert(finished == 2);
       assert(E[0].state != HELD && E[1].state != HELD);
       break
    od
}

init { atomic { E[0].limit = CELLS; E[1].limit = CELLS; run Thread(0); run Thread(1) } }
