// SPDX-License-Identifier: Apache-2.0
// Deposit and restart, as core/server/{keeper,keeper_link,broker,connections,caches,requests}.cc and
// core/client/connection.cc do it: a broker that dies between any two of its steps, its messages to the keeper that are
// on their way then, requests that a new broker gets again, and clients that die meanwhile. One cache name, and sessions
// that clients make. The keeper does what it was told in one step, though who told it may be dead by then.
//
// What is checked:
//  * no descriptor is lost: a LIVE cache, a connection that was welcomed and its pidfd are with the keeper;
//  * nothing is left over: what no word names is forgotten, a region is not while it is mapped or its cache is LIVE;
//  * no request is done twice, and each has its own answer;
//  * a client that dies while the broker is away is noticed: its slot is vacated and its connection forgotten;
//  * a connection is taken for no other: a client has the slot that it was told of;
//  * nobody waits for ever while the keeper lives, and nobody sees his connection end.
//
// Left out: proofs of identity, several caches and slots of a process, extents (extents.pml), the keeper's death, memory
// orders (one broker at a time writes the words).
//
// PLAN 1: A makes a session, B destroys it.   2: A opens the cache and attaches, B opens it.
// PLAN 3: A destroys the cache, B opens it.   4: A opens and attaches, then B does.   5: A makes a session, then B.
// PLAN 6: A destroys the cache; B opens it, destroys it and opens it again.
// The largest search is that of PLAN 6 with two deaths: 11,843,728 states, no error, 703 MB, half a minute.
//
// RUN    -DPLAN=1
// RUN    -DPLAN=2
// RUN    -DPLAN=3
// RUN    -DPLAN=4 -DDEATH=1
// RUN    -DPLAN=5 -DDEATH=1
// RUN    -DPLAN=6
// RUN    -DPLAN=1 -DROOM=1
// LONG   -DPLAN=1 -DBROKER_DEATHS=2
// LONG   -DPLAN=2 -DBROKER_DEATHS=2
// LONG   -DPLAN=2 -DGIVEN_UP=1
// LONG   -DPLAN=3 -DBROKER_DEATHS=2
// LONG   -DPLAN=4 -DBROKER_DEATHS=2 -DDEATH=1
// LONG   -DPLAN=6 -DBROKER_DEATHS=2
// LONG   -DPLAN=1 -DBROKER_DEATHS=2 -DROOM=1
// BROKEN -DPLAN=1 -DBUG_WELCOME_FIRST           a client is welcomed before the keeper has its connection
// BROKEN -DPLAN=2 -DBUG_REPLY_FIRST             a cache is LIVE and opened before the keeper has its region
// BROKEN -DPLAN=2 -DBUG_UNNAMED_KEPT            a region that no word names stays with the keeper
// BROKEN -DPLAN=3 -DBUG_FORGOTTEN_FIRST         a region is forgotten before its word says DYING
// BROKEN -DPLAN=2 -DBUG_LINK_NOT_READ_OUT       the next broker starts while a message of the last one is on its way
// BROKEN -DPLAN=2 -DBUG_HAND_OVER_GIVES         the keeper keeps no copy of what it hands over
// BROKEN -DPLAN=1 -DBUG_OLD_GENERATION          a new broker does what an old one was asked
// BROKEN -DPLAN=1 -DBUG_NOT_REPEATED            a client waits on when it reads RESUME
// BROKEN -DPLAN=1 -DBUG_MADE_AGAIN              a session is made without a look for that of the same request
// BROKEN -DPLAN=3 -DBUG_DESTROYED_AGAIN         a repeated DESTROY goes by the name alone
// BROKEN -DPLAN=6 -DBUG_NOTE_OF_THE_PLACE       the note of who destroyed a cache goes when its place is used again
// BROKEN -DPLAN=3 -DBUG_NOTE_BELIEVED           a DESTROY that only began is taken for done
// BROKEN -DPLAN=2 -DGIVEN_UP=1 -DBUG_ANY_ANSWER              a client takes an answer of another number
// BROKEN -DPLAN=1 -DROOM=1 -DBUG_RESUME_FORGOTTEN      a RESUME for which the socket had no room is not sent later
// BROKEN -DPLAN=5 -DDEATH=1 -DBUG_NUMBERS_AGAIN        a new broker numbers connections from 1 again
// BROKEN -DPLAN=4 -DDEATH=1 -DBUG_PIDFD_NOT_WATCHED    a new broker does not look at the pidfds it got
// BROKEN -DPLAN=4 -DDEATH=1 -DBUG_CONNECTION_FIRST     a dead client's connection is forgotten before its slot is vacated
#ifndef BROKER_DEATHS
#define BROKER_DEATHS 1
#endif
#ifndef DEATH
#define DEATH 0 // of client A
#endif
#ifndef GIVEN_UP
#define GIVEN_UP 0 // requests whose deadline comes
#endif
#ifndef ROOM
#define ROOM 3 // messages in a client's socket
#endif
#define SESSIONS 4
#define CACHES 2
#define REGIONS 8
#define NONE 9

mtype = { WELCOME, RESUME, CREATE, OPEN, ATTACH, DESTROY_SESSION, DESTROY };

// The server region. A session's id is its place: ids are not used twice. All caches have the same name in session 0.
typedef Session { byte state; byte conn; byte number }
typedef Cache { byte state; byte region; byte by_client; byte by_number; byte by_region } // by_...: BUG_NOTE_OF_THE_PLACE's
typedef Destroyer { byte number; byte region } // of each connection, its last DESTROY
#define EMPTY 0
#define LIVE 1
#define DYING 2
Session session[SESSIONS];
Cache cache[CACHES];
Destroyer destroyer[2];
byte generation = 0; byte next_conn = 1; byte next_region = 2;
// A cache's region: who writes
byte slot_conn[2]; byte slot_state[2]; byte slot_region[2];
#define VACANT 0
#define ACTIVE 1
#define DEAD 2

// The kernel
byte stage[2];                      // of the connection of a client
#define CLOSED 0
#define BACKLOG 1
#define ACCEPTED 2
#define ENDED 3
chan to_broker[2] = [3] of { mtype, byte, byte, bit, byte };  // type, number, generation, repeated, about what
chan to_client[2] = [ROOM] of { mtype, byte, byte, byte };    // type, number, generation, answer
byte mapped[2];                     // the region of which a client has a descriptor
bit dead[2];

// The keeper
byte kept_conn[2]; bit kept_region[REGIONS];
chan link = [1] of { bit, bit, byte, byte, byte }; // deposit?, region?, client, id, broker's number
chan ack = [1] of { byte };

// Ghosts
byte broker = 0; // its number: deaths so far
bit welcomed[2]; bit finished[2]; bit told; byte told_session; byte owner_of_slot[2]; byte maker[SESSIONS];
byte made[2]; byte destroyed[2]; byte given_up = 0;

// ---- keeper -----------------------------------------------------------------------------------------------------------
active proctype Keeper() {
    bit deposit, region; byte client, id, from;
end:
    do
    :: atomic {
           link?deposit, region, client, id, from ->
           if
           :: region -> kept_region[id] = deposit
           :: else -> kept_conn[client] = (deposit -> id : 0)
           fi;
           if :: from == broker -> ack!id :: else fi;
           deposit = 0; region = 0; client = 0; id = 0; from = 0
       }
    od
}

// ---- broker -----------------------------------------------------------------------------------------------------------
inline maybe_die() {
    if
    :: broker < BROKER_DEATHS -> goto restart
    :: true
    fi
}
// KeeperLink::exchange()
inline tell(is_deposit, is_region, whose, what_id) {
    link!is_deposit, is_region, whose, what_id, broker;
    maybe_die();
    ack?_
}
inline send(to, kind, num, said) {
    atomic {
        if
        :: dead[to] // it will be noticed
        :: !dead[to] && nfull(to_client[to]) -> to_client[to]!kind, num, generation, said
        :: !dead[to] && full(to_client[to]) -> assert(kind == RESUME); owed[to] = 1 // else the client is disconnected
        fi
    }
}
// Broker::resume()
inline resume() {
    owed[c] = 0;
    send(c, RESUME, 0, 0);
#ifdef BUG_RESUME_FORGOTTEN
    owed[c] = 0
#endif
}
inline find_cache() { // r = entry of the LIVE one, or CACHES
    d_step { r = 0; do :: r < CACHES && cache[r].state != LIVE -> r++ :: else -> break od }
}
// Caches::destroy(), Destroyers::note(): the word first
inline destroy(by_what) {
#ifdef BUG_FORGOTTEN_FIRST
    tell(0, 1, 0, cache[r].region);
#endif
#ifdef BUG_NOTE_OF_THE_PLACE
    d_step { cache[r].by_client = c; cache[r].by_number = by_what; cache[r].by_region = cache[r].region };
#else
    destroyer[c].number = 0;
    maybe_die();
    destroyer[c].region = cache[r].region;
    maybe_die();
    destroyer[c].number = by_what;
#endif
    maybe_die();
    d_step { cache[r].state = DYING; destroyed[c]++; assert(destroyed[c] < 2) }
}
// Caches::has_destroyed(): what only began does not count
#define live(r) ((cache[0].state == LIVE && cache[0].region == r) || (cache[1].state == LIVE && cache[1].region == r))
#ifdef BUG_NOTE_OF_THE_PLACE
#define destroyed_here(i, num) (cache[i].by_client == c && cache[i].by_number == num && \
                                (cache[i].state != LIVE || cache[i].by_region != cache[i].region))
#define has_destroyed(num) (destroyed_here(0, num) || destroyed_here(1, num))
#elif defined(BUG_NOTE_BELIEVED)
#define has_destroyed(num) (destroyer[c].number == num)
#else
#define has_destroyed(num) (destroyer[c].number == num && !live(destroyer[c].region))
#endif
inline welcome_now() { send(c, WELCOME, 0, 0) }

active proctype Broker() {
    byte known[2]; bit owed[2]; byte waiting[2]; byte making = 0; // private: a new one has none of it
    byte c = 0, number = 0, g = 0, what = 0, r = 0; bit repeated = 0; mtype type;
    atomic { // what the keeper made
        session[0].state = LIVE; cache[0].state = EMPTY;
#if PLAN == 3 || PLAN == 6
        cache[0].state = LIVE; cache[0].region = 1; kept_region[1] = 1
#endif
    }
    goto take_over;
restart:
#ifndef BUG_LINK_NOT_READ_OUT
    empty(link); // Keeper::broker_has_died()
#endif
    atomic {
        broker++;
        do :: nempty(ack) -> ack?_ :: empty(ack) -> break od;
        c = 0;
        do
        :: c == 2 -> break
        :: else ->
           if // what the dead alone held
           :: stage[c] == ACCEPTED && kept_conn[c] == 0 ->
              stage[c] = ENDED;
              do :: nempty(to_broker[c]) -> to_broker[c]?type, _, _, _, _ :: empty(to_broker[c]) -> break od
           :: else
           fi;
           known[c] = 0; owed[c] = 0; waiting[c] = 0;
           c++
        od;
        making = 0; c = 0; number = 0; g = 0; what = 0; r = 0; repeated = 0; type = 0
    }
take_over: // Broker::take_over()
    atomic {
        known[0] = kept_conn[0]; known[1] = kept_conn[1];
#ifdef BUG_HAND_OVER_GIVES
        kept_conn[0] = 0; kept_conn[1] = 0;
#endif
    }
    maybe_die();
    generation++;
    maybe_die();
    r = 0; // Caches::restore()
    do
    :: r == CACHES -> break
    :: else ->
       if
       :: cache[r].state != EMPTY && !kept_region[cache[r].region] -> assert(cache[r].state == DYING); cache[r].state = EMPTY
       :: else
       fi;
       r++
    od;
#ifndef BUG_UNNAMED_KEPT
    r = 1;
    do
    :: r == REGIONS -> break
    :: else ->
       if
       :: kept_region[r] && !(cache[0].state != EMPTY && cache[0].region == r) &&
          !(cache[1].state != EMPTY && cache[1].region == r) ->
          tell(0, 1, 0, r);
          maybe_die()
       :: else
       fi;
       r++
    od;
#endif
    r = 0;
    do
    :: r == 2 -> break
    :: else -> if :: slot_state[r] == DEAD -> slot_state[r] = VACANT; maybe_die() :: else fi; r++ // restore_slots()
    od;
    r = 1;
    do
    :: r == SESSIONS -> break
    :: else -> if :: session[r].state == DYING -> session[r].state = EMPTY; maybe_die() :: else fi; r++
    od;
    r = 0;
    c = 0; // Broker::resume_all()
    do
    :: c == 2 -> break
    :: else ->
       if :: known[c] != 0 -> resume(); maybe_die() :: else fi;
       c++
    od;
serve:
    atomic { c = 0; number = 0; g = 0; what = 0; r = 0; repeated = 0; type = 0 }
end:
    do
    // accept_one(), and hello() with welcome()
    :: atomic { stage[0] == BACKLOG -> c = 0 }; goto accept
    :: atomic { stage[1] == BACKLOG -> c = 1 }; goto accept
    :: atomic { known[0] != 0 && nempty(to_broker[0]) -> c = 0; to_broker[0]?type, number, g, repeated, what }; goto handle
    :: atomic { known[1] != 0 && nempty(to_broker[1]) -> c = 1; to_broker[1]?type, number, g, repeated, what }; goto handle
#ifdef BUG_PIDFD_NOT_WATCHED
    :: atomic { known[0] != 0 && dead[0] && broker == 0 -> c = 0 }; goto died
#else
    :: atomic { known[0] != 0 && dead[0] -> c = 0 }; goto died
#endif
    :: making != 0 && (cache[0].state == EMPTY || cache[1].state == EMPTY) -> goto finish // a server has room for many
    // Caches::remove_if_gone(): nobody maps it any more
    :: atomic { cache[0].state == DYING && mapped[0] != cache[0].region && mapped[1] != cache[0].region -> r = 0 }; goto remove
    :: atomic { cache[1].state == DYING && mapped[0] != cache[1].region && mapped[1] != cache[1].region -> r = 1 }; goto remove
    od;
accept:
    stage[c] = ACCEPTED;
#ifdef BUG_NUMBERS_AGAIN
    atomic { number = 1; do :: known[0] == number || known[1] == number -> number++ :: else -> break od }
#else
    atomic { number = next_conn; next_conn++ };
#endif
    maybe_die();
#ifdef BUG_WELCOME_FIRST
    welcome_now();
    maybe_die();
#endif
    tell(1, 0, c, number);
    maybe_die();
    known[c] = number;
#ifndef BUG_WELCOME_FIRST
    welcome_now();
#endif
    maybe_die();
    goto serve;
handle: // Broker::handle_packet()
    maybe_die();
    if
#ifndef BUG_OLD_GENERATION
    :: g != generation ->
       if :: owed[c] -> resume() :: else fi
#endif
    :: else ->
       if
       :: type == CREATE ->
          d_step {
              r = 1;
#ifdef BUG_MADE_AGAIN
              do :: r < SESSIONS && session[r].number != 0 -> r++ :: else -> break od;
#else
              do :: r < SESSIONS && !(session[r].state == LIVE && session[r].conn == known[c] && session[r].number == number) -> r++
              :: else -> break od;
#endif
              if
              :: r == SESSIONS || session[r].state != LIVE ->
                 r = 1;
                 do :: session[r].number != 0 -> r++ :: else -> break od; // never used
                 session[r].conn = known[c]; session[r].number = number
              :: else
              fi
          };
          maybe_die();
          d_step { if :: session[r].state != LIVE -> session[r].state = LIVE; maker[r] = c; made[c]++; assert(made[c] < 2) :: else fi };
          maybe_die();
          send(c, CREATE, number, r)
       :: type == DESTROY_SESSION ->
          if
          :: session[what].state == LIVE ->
             d_step { session[what].state = DYING; destroyed[c]++; assert(destroyed[c] < 2) };
             maybe_die();
             session[what].state = EMPTY; // bury_session(); its caches go as by DESTROY
             maybe_die();
             send(c, DESTROY_SESSION, number, 1)
          :: else -> send(c, DESTROY_SESSION, number, repeated)
          fi
       :: type == OPEN ->
          find_cache();
          if
          :: r < CACHES -> atomic { send(c, OPEN, number, cache[r].region); if :: !dead[c] -> mapped[c] = cache[r].region :: else fi }
          :: else ->
             waiting[c] = number;
             if :: making == 0 -> atomic { assert(next_region < REGIONS); making = next_region; next_region++ } :: else fi
          fi
       :: type == ATTACH ->
          if
          :: !(cache[0].state == LIVE && cache[0].region == what) && !(cache[1].state == LIVE && cache[1].region == what) ->
             send(c, ATTACH, number, NONE) // CACHE_EGONE
          :: else ->
             if
             :: slot_state[0] == ACTIVE && slot_conn[0] == known[c] -> r = 0
             :: slot_state[1] == ACTIVE && slot_conn[1] == known[c] -> r = 1
             :: else ->
                if :: slot_state[0] == VACANT -> r = 0 :: else -> r = 1; assert(slot_state[1] == VACANT) fi;
                slot_conn[r] = known[c];
                maybe_die();
                atomic { slot_state[r] = ACTIVE; owner_of_slot[r] = c }
             fi;
             assert(owner_of_slot[r] == c);
             maybe_die();
             send(c, ATTACH, number, r)
          fi
       :: type == DESTROY ->
          find_cache();
          if
#ifndef BUG_DESTROYED_AGAIN
          :: repeated && has_destroyed(number) -> skip
          :: else ->
#else
          :: true ->
#endif
             if :: r < CACHES -> destroy(number) :: else fi
          fi;
          maybe_die();
          send(c, DESTROY, number, 1)
       fi
    fi;
    maybe_die();
    goto serve;
finish: // Caches::finish()
    atomic { r = 0; do :: cache[r].state != EMPTY -> r++; assert(r < CACHES) :: else -> break od }
#ifndef BUG_REPLY_FIRST
    tell(1, 1, 0, making);
    maybe_die();
#endif
    cache[r].region = making;
    maybe_die();
    cache[r].state = LIVE;
    maybe_die();
    c = 0;
    do
    :: c == 2 -> break
    :: else ->
       if
       :: waiting[c] != 0 ->
          atomic { send(c, OPEN, waiting[c], making); if :: !dead[c] -> mapped[c] = making :: else fi; waiting[c] = 0 };
          maybe_die()
       :: else
       fi;
       c++
    od;
#ifdef BUG_REPLY_FIRST
    tell(1, 1, 0, making);
#endif
    making = 0;
    goto serve;
remove:
    tell(0, 1, 0, cache[r].region);
    maybe_die();
    cache[r].state = EMPTY;
    maybe_die();
    goto serve;
died: // Broker::process_died()
#ifdef BUG_CONNECTION_FIRST
    tell(0, 0, c, known[c]);
    maybe_die();
#endif
    r = 0;
    do
    :: r == 2 -> break
    :: else ->
       if
       :: slot_state[r] != VACANT && slot_conn[r] == known[c] ->
          slot_state[r] = DEAD;
          maybe_die();
          slot_state[r] = VACANT;
          maybe_die()
       :: else
       fi;
       r++
    od;
    destroyer[c].number = 0; // Destroyers::forget()
    maybe_die();
#ifndef BUG_CONNECTION_FIRST
    tell(0, 0, c, known[c]);
#endif
    known[c] = 0; waiting[c] = 0;
    maybe_die();
    goto serve
}

// ---- clients ----------------------------------------------------------------------------------------------------------
// Connection::connect()
inline connect() {
    do
    :: stage[c] = BACKLOG;
       if
       :: atomic { to_client[c]?came, _, g, _ -> assert(came == WELCOME || came == RESUME); came = 0; welcomed[c] = 1 }; break
       :: stage[c] == ENDED && empty(to_client[c]) // and begin again
       fi
    od
}
// Connection::request(): number + 1, and `answer`, NONE if it was given up
inline request(kind, said) {
    number++;
    atomic { // drain()
        do
        :: to_client[c]?came, _, heard, _ -> if :: came == RESUME -> g = heard :: else fi
        :: empty(to_client[c]) -> break
        od
    };
    to_broker[c]!kind, number, g, 0, said;
    do // await_reply()
    :: atomic { to_client[c]?came, at, heard, answer };
       if
#ifndef BUG_NOT_REPEATED
       :: came == RESUME && heard != g -> g = heard; to_broker[c]!kind, number, g, 1, said
#endif
#ifndef BUG_ANY_ANSWER
       :: came == kind && at == number -> break
#else
       :: came != RESUME && came != WELCOME -> assert(came == kind); break
#endif
       :: else
       fi
    :: atomic { given_up < GIVEN_UP -> given_up++; answer = NONE; break } // the deadline
    od;
    atomic { came = 0; heard = 0; at = 0 }
}

proctype Client(byte c) provided (!dead[c]) {
    byte number = 0, g = 0, heard = 0, at = 0, answer = 0; mtype came = 0;
#if PLAN == 4
    if :: c == 1 -> dead[0] || finished[0] :: else fi;
#endif
#if PLAN == 5
    if :: c == 1 -> (dead[0] && kept_conn[0] == 0) || finished[0] :: else fi;
#endif
    connect();
#if PLAN == 1
    if
    :: c == 0 -> request(CREATE, 0); assert(session[answer].state == LIVE); atomic { told_session = answer; told = 1 }
    :: else -> told; request(DESTROY_SESSION, told_session); assert(answer == 1 && session[told_session].state == EMPTY)
    fi;
#elif PLAN == 3
    if
    :: c == 0 -> request(DESTROY, 0); assert(answer == 1 && !live(1))
    :: else -> request(OPEN, 0)
    fi;
#elif PLAN == 6
    if
    :: c == 0 -> request(DESTROY, 0); assert(answer == 1 && !live(1))
    :: else ->
       request(OPEN, 0);
       mapped[c] = 0;
       request(DESTROY, 0);
       request(OPEN, 0)
    fi;
#elif PLAN == 5
    request(CREATE, 0);
    assert(session[answer].state == LIVE && maker[answer] == c);
#else
    do
    :: request(OPEN, 0); if :: answer != NONE -> break :: else fi
    od;
    assert(mapped[c] == answer);
    do
    :: request(ATTACH, mapped[c]); if :: answer != NONE -> break :: else fi
    od;
    assert(slot_state[answer] == ACTIVE && owner_of_slot[answer] == c);
#endif
    finished[c] = 1
}

#define lost(i) (cache[i].state == LIVE && !kept_region[cache[i].region])
#define unheld(c) (welcomed[c] && !dead[c] && (kept_conn[c] == 0 || (mapped[c] != 0 && !kept_region[mapped[c]])))
#define named(r) ((cache[0].state != EMPTY && cache[0].region == r) || (cache[1].state != EMPTY && cache[1].region == r))

active proctype Judge() {
    byte i = 0;
end:
    do
    :: atomic { lost(0) || lost(1) || unheld(0) || unheld(1) -> assert(false) }
    :: atomic { DEATH && !dead[0] -> dead[0] = 1; mapped[0] = 0 }
    :: timeout ->
       assert(finished[0] || dead[0]);
       assert(finished[1]);
       atomic {
           i = 1;
           do
           :: i == REGIONS -> break
           :: else -> assert(kept_region[i] == named(i)); i++
           od;
           i = 0;
           do
           :: i == 2 -> break
           :: else -> assert(slot_state[i] == VACANT || (slot_state[i] == ACTIVE && !dead[owner_of_slot[i]])); i++
           od;
           i = 0
       };
       assert(!dead[0] || kept_conn[0] == 0);
       break
    od
}

init { atomic { run Client(0); run Client(1) } }
