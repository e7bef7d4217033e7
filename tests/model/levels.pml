// SPDX-License-Identifier: Apache-2.0
// Publishing while levels are added, as core/store/index.cc, core/store/writer_wait.cc and core/server/{grow,recover}.cc
// do it. Writers look through the levels oldest first and publish by a CAS from 0, whatever they publish: a row or the
// stub of a spilled one. The broker makes levels of FREE chunks, on GROW and ahead of need; its second thread zeroes
// them; it may die, and its thread with it. A reader looks newest first. All ids meet in one bucket, which has one entry
// in each level; the oldest is full of another id. A FREE chunk holds the bytes of rows that were given back.
//
// What is checked:
//  * an insert of an id wins once, and once one has come back, every look-up that begins later finds the id;
//  * nobody sees an entry that was not zeroed, or one in a chunk that is no level's;
//  * a GROW that comes twice, or too late, adds no level;
//  * no chunk is lost: what a dead broker left is FREE again;
//  * nobody waits for ever, though a broker forgets what it read; who is refused was refused after he asked.
//
// Left out: tags, buckets of 16, dense levels, smaller levels for want of room, weak memory.
//
// RUN    -DREFUSALS=1
// RUN    -DREADERS=0 -DBROKER_DEATHS=1
// LONG   -DREADERS=0 -DBROKER_DEATHS=1 -DSECOND_SLOT=0 -DREFUSALS=1
// LONG   -DAHEAD=1
// LONG   -DREFUSALS=1 -DAHEAD=1 -DSECOND_SLOT=0
// LONG   -DREADERS=0 -DBROKER_DEATHS=1 -DSECOND_SLOT=0
// BROKEN -DAHEAD=1 -DBUG_NEWEST_FIRST     writers begin with the newest level
// BROKEN -DBUG_NOT_ZEROED                 a level is counted before its entries are zeroed
// BROKEN -DBUG_STORE                      an entry is stored, not exchanged
// BROKEN -DDOUBLES=1 -DBUG_GROW_REPEATED  GROW(k) is not compared with the levels there are
// BROKEN -DBROKER_DEATHS=1 -DBUG_LEFTOVER_TRUSTED           a new broker counts an INDEX extent that it finds
// BROKEN -DREADERS=0 -DBROKER_DEATHS=1 -DSECOND_SLOT=0 -DREFUSALS=1 -DBUG_OLD_ANSWER  a new broker wakes over an old refusal
// BROKEN -DREADERS=0 -DBROKER_DEATHS=1 -DBUG_WANT_FORGOTTEN  a new broker neither reads Slot::want nor wakes
// BROKEN -DBUG_LOOK_LATE                  the futex word is read after the last look at the levels
// BROKEN -DREADERS=0 -DBROKER_DEATHS=1 -DBUG_STRAY_THREAD   the dead broker's thread goes on
#ifndef BROKER_DEATHS
#define BROKER_DEATHS 0
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef DOUBLES
#define DOUBLES 0 // messages that come twice
#endif
#ifndef AHEAD
#define AHEAD 0 // levels made ahead of need
#endif
#ifndef SECOND_SLOT
#define SECOND_SLOT 1 // 0: both are threads of one process
#endif
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef READERS
#define READERS 1
#endif
#define LEVELS 3 // and chunks
#define JUNK 9
#define OTHER 3 // the id that fills the oldest level
#define NONE 9

byte content[LEVELS]; bit is_index[LEVELS]; // by chunk: its entry, 0 is empty; FREE or INDEX
byte level_chunk[LEVELS]; byte levels = 1;  // the header
byte futex[2]; byte want[2]; bit efull[2];   // slots: want is levels passed, 0 is none; efull: the answer is CACHE_EFULL
byte message[2];                            // in the socket, as want

byte known[2]; bit mutex[2]; // private to the writing processes
byte job = NONE; bit zeroed = 0; byte stray = NONE; // the broker's second thread

bit won[3]; bit done[3]; bit waiting[3]; byte refused_at[2]; // ghosts
byte broker_deaths = 0; byte refusals = 0; byte doubles = 0; byte ahead = 0;

inline refresh() { atomic { if :: known[s] < levels -> known[s] = levels :: else fi } }

proctype Writer(byte w; byte s; byte id) {
    byte k = 0, e = 0, seen = 0;
insert: // Index::insert()
    k = 0;
#ifdef BUG_NEWEST_FIRST
    refresh();
    k = known[s] - 1;
#endif
    do
    :: k < known[s] -> e = content[level_chunk[k]];
       assert(e != JUNK);
       if
       :: e == 0 ->
          atomic {
              if
#ifdef BUG_STORE
              :: true ->
#else
              :: content[level_chunk[k]] == 0 ->
#endif
                 assert(is_index[level_chunk[k]] && !won[id]);
                 content[level_chunk[k]] = id;
                 won[id] = 1
              :: else
              fi;
              e = content[level_chunk[k]]
          }
       :: else
       fi;
       if :: e == id -> goto came_back :: else -> k++ fi
    :: else ->
       refresh();
       if :: k == known[s] -> break :: else fi
    od;
    // Writer::wait_for_level()
    atomic { !mutex[s] -> mutex[s] = 1; seen = futex[s] }
    refresh();
    if :: known[s] > k -> mutex[s] = 0; goto insert :: else fi;
    want[s] = k;
    atomic {
        message[s] = k;
#ifdef BUG_LOOK_LATE
    };
    atomic {
        seen = futex[s];
#endif
        mutex[s] = 0;
        waiting[w] = 1
    };
    atomic { futex[s] != seen -> waiting[w] = 0 }
    if
    :: atomic { efull[s] -> assert(refused_at[s] > seen) }; goto end // CACHE_EFULL
    :: else -> goto insert
    fi;
came_back:
    done[id] = 1;
end:
    skip;
    d_step { k = 0; e = 0; seen = 0 }
}

proctype Reader(byte id) {
    byte k = 0, e = 0; bit must;
    must = done[id];
    k = levels;
    do
    :: k == 0 || e == id -> break
    :: else -> k--; e = content[level_chunk[k]]; assert(e != JUNK && is_index[level_chunk[k]])
    od;
    assert(e == id || !must);
    d_step { must = 0; k = 0; e = 0 }
}

proctype Populator() {
end:
    do
    :: atomic { job != NONE && !zeroed -> content[job] = 0; zeroed = 1 }
    :: atomic { stray != NONE -> content[stray] = 0; stray = NONE }
    od
}

inline maybe_die() {
#if BROKER_DEATHS > 0
    if
    :: broker_deaths < BROKER_DEATHS -> broker_deaths++; goto restart
    :: true
    fi
#else
    skip
#endif
}
// At once it is lent for rows, which are given back.
inline free_index(chunk) { atomic { is_index[chunk] = 0; content[chunk] = JUNK } }
inline answer(slot, code) {
    atomic {
        efull[slot] = code; wants[slot] = 0; want[slot] = 0;
        if :: code -> refused_at[slot] = futex[slot] + 1 :: else fi
    };
    maybe_die();
    futex[slot]++
}
inline answer_all(code) {
    if :: wants[0] != 0 -> answer(0, code) :: else fi;
    if :: wants[1] != 0 -> answer(1, code) :: else fi
}
inline publish_level(chunk) {
    level_chunk[levels] = chunk;
    maybe_die();
    levels++;
    growing = 0;
    answer_all(0)
}
// pump_growth()
inline begin_growth() {
    growing = 1;
    if
    :: refusals < REFUSALS -> refusals++; growing = 0; answer_all(1)
    :: true ->
       if
       :: !is_index[1] -> c = 1
       :: !is_index[2] -> c = 2
       :: else -> assert(false) // a chunk is lost
       fi;
       is_index[c] = 1;
       maybe_die();
       assert(job == NONE);
#ifdef BUG_NOT_ZEROED
       publish_level(c)
#else
       atomic { job = c; zeroed = 0; c = 0 }
#endif
    fi
}
inline serve_level(slot) {
    if
#ifndef BUG_GROW_REPEATED
    :: wants[slot] != 0 && levels > wants[slot] -> answer(slot, 0)
    :: wants[slot] != 0 && levels <= wants[slot] && !growing ->
#else
    :: wants[slot] != 0 && !growing ->
#endif
       if
       :: levels == LEVELS -> answer_all(1)
       :: else ->
          assert(content[level_chunk[levels - 1]] != 0); // who wants it has passed all others
          begin_growth()
       fi
    :: else
    fi
}
inline receive(slot) {
    atomic { wants[slot] = message[slot]; if :: doubles < DOUBLES -> doubles++ :: message[slot] = 0 fi }
}

active proctype Broker() {
    byte wants[2]; byte c = 0; bit growing = 0; bit fresh = 0; // what a new broker does not have
    atomic { // before anybody runs: they are started here
        content[0] = OTHER; content[1] = JUNK; content[2] = JUNK; is_index[0] = 1;
        known[0] = 1; known[1] = 1;
        run Populator(); run Writer(0, 0, 1); run Writer(1, SECOND_SLOT, 1); if :: READERS == 1 -> run Reader(1) :: else fi;
        if :: WRITERS == 3 -> run Writer(2, 0, 2) :: else fi
    }
    goto serve;
restart:
    atomic {
#ifdef BUG_STRAY_THREAD
        if :: job != NONE && !zeroed -> stray = job :: else fi;
#endif
        job = NONE; zeroed = 0; growing = 0; wants[0] = 0; wants[1] = 0; c = 0
    }
    atomic { // restore_extents()
        c = 1;
        do
        :: c == LEVELS -> break
        :: else ->
           if
           :: is_index[c] && !(levels > 1 && level_chunk[1] == c) && !(levels > 2 && level_chunk[2] == c) ->
#ifdef BUG_LEFTOVER_TRUSTED
              level_chunk[levels] = c; levels++
#else
              free_index(c)
#endif
           :: else
           fi;
           c++
        od
    };
#ifndef BUG_WANT_FORGOTTEN
    wants[0] = want[0]; // restore_slots()
    wants[1] = want[1];
    fresh = 1;
    goto review; // reconnect_all()
#else
    atomic { message[0] = 0; message[1] = 0 }
#endif
    goto serve;
review:
    serve_level(0);
    serve_level(1);
    if
    :: fresh -> fresh = 0; // wake_all(); messages of an old generation are dropped
       atomic {
           message[0] = 0; message[1] = 0;
#ifndef BUG_OLD_ANSWER
           efull[0] = 0; efull[1] = 0;
#endif
           futex[0]++; futex[1]++
       }
    :: else
    fi;
serve:
end:
    do
    :: message[0] != 0 -> receive(0); goto review
    :: message[1] != 0 -> receive(1); goto review
    :: job != NONE && zeroed -> atomic { c = job; job = NONE; zeroed = 0 };
       if
       :: refusals < REFUSALS -> refusals++; free_index(c); growing = 0; answer_all(1) // it could not be zeroed
       :: true -> publish_level(c)
       fi;
       c = 0;
       goto review
    :: broker_deaths < BROKER_DEATHS && growing -> broker_deaths++; goto restart // while it is zeroed
    :: ahead < AHEAD && !growing && levels < LEVELS -> ahead++; begin_growth() // grow_ahead()
    od
}

#define has(k, id) (levels > k && content[level_chunk[k]] == id)

active proctype Judge() {
end:
    timeout;
    assert((!done[1] || has(1, 1) || has(2, 1)) && (!done[2] || has(1, 2) || has(2, 2)));
    assert(!waiting[0] && !waiting[1] && !waiting[2]);
    assert(is_index[0] + is_index[1] + is_index[2] == levels)
}
