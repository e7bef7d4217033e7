// SPDX-License-Identifier: Apache-2.0
//! The crate against a real server: what it adds to libcache.h, which has tests of its own. Lifetimes are tested by
//! examples that must not compile, see `Cache`.
mod support;

use libcache::{
    Build, Cache, Client, ConnectOptions, Dtype, Element, Error, Input, OpenOptions, Put, SessionOptions, Spec,
};
use std::fmt::Debug;
use std::thread;
use std::time::Duration;
use support::Place;

fn round_trip<T: Element + PartialEq + Debug>(cache: &Cache, id: i64, values: [T; 4]) {
    assert_eq!(cache.put(id, &[Input::array(&values, &[2, 2]), Input::scalar(&values[1])]), Ok(Put::Stored));
    let view = cache.get(id).unwrap().unwrap();
    assert_eq!((view.row_id(), view.columns()), (id, 2));
    let column = view.column(0).unwrap();
    assert_eq!((column.dtype(), column.shape()), (T::DTYPE, &[2, 2][..]));
    assert_eq!(column.as_slice::<T>().unwrap(), values);
    let scalar = view.column(1).unwrap();
    assert!(scalar.shape().is_empty());
    assert_eq!(scalar.scalar::<T>().unwrap(), values[1]);
}

#[test]
fn every_type_of_element_comes_back_with_type_and_shape() {
    let place = Place::new();
    let cache = place.cache();
    round_trip(&cache, 0, [i8::MIN, i8::MAX, 0, 1]);
    round_trip(&cache, 1, [i16::MIN, i16::MAX, 0, 1]);
    round_trip(&cache, 2, [i32::MIN, i32::MAX, 0, 1]);
    round_trip(&cache, 3, [i64::MIN, i64::MAX, 0, 1]);
    round_trip(&cache, 4, [u8::MIN, u8::MAX, 0, 1]);
    round_trip(&cache, 5, [u16::MIN, u16::MAX, 0, 1]);
    round_trip(&cache, 6, [u32::MIN, u32::MAX, 0, 1]);
    round_trip(&cache, 7, [u64::MIN, u64::MAX, 0, 1]);
    round_trip(&cache, 8, [f32::MIN, f32::MAX, 0.0, 1.0]);
    round_trip(&cache, 9, [f64::MIN, f64::MAX, 0.0, 1.0]);
}

#[test]
fn texts_bytes_raw_and_empty_columns_come_back() {
    let place = Place::new();
    let cache = place.cache();
    let half = [0x3c00u16.to_ne_bytes(), 0x4000u16.to_ne_bytes()].concat();
    let row = [
        Input::text("Zürich"),
        Input::bytes(&[1, 0, 2]),
        Input::raw(Dtype::Float16, &half, &[2]),
        Input::raw(Dtype::Bool, &[1, 0], &[2]),
        Input::array::<f32>(&[], &[0, 4]),
        Input::text(""),
    ];
    assert_eq!(cache.put(0, &row), Ok(Put::Stored));
    let view = cache.get(0).unwrap().unwrap();
    assert_eq!(view.column(0).unwrap().text(), Ok("Zürich"));
    assert_eq!(view.column(1).unwrap().bytes(), [1, 0, 2]);
    assert_eq!(view.column(2).unwrap().dtype(), Dtype::Float16);
    assert_eq!(view.column(2).unwrap().bytes(), half);
    assert_eq!(view.column(3).unwrap().dtype(), Dtype::Bool);
    assert_eq!(view.column(4).unwrap().as_slice::<f32>(), Ok(&[][..]));
    assert_eq!(view.column(4).unwrap().shape(), [0, 4]);
    assert_eq!(view.column(5).unwrap().text(), Ok(""));
}

#[test]
fn more_columns_than_fit_without_an_allocation() {
    let place = Place::new();
    let cache = place.cache();
    let values: Vec<i32> = (7..47).collect();
    let row: Vec<Input> = values.iter().map(Input::scalar).collect();
    assert_eq!(cache.put(3, &row), Ok(Put::Stored));
    let view = cache.get(3).unwrap().unwrap();
    let found: Vec<i32> = (0..view.columns()).map(|i| view.column(i).unwrap().scalar().unwrap()).collect();
    assert_eq!(found, values);
}

#[test]
fn the_first_row_wins_and_a_miss_is_none() {
    let place = Place::new();
    let cache = place.cache();
    assert!(cache.get(5).unwrap().is_none());
    assert_eq!(cache.put(5, &[Input::scalar(&1i32)]), Ok(Put::Stored));
    assert_eq!(cache.put(5, &[Input::scalar(&2i32)]), Ok(Put::WasThere));
    assert_eq!(cache.get(5).unwrap().unwrap().column(0).unwrap().scalar(), Ok(1i32));
    assert_eq!((cache.contains(5), cache.contains(6)), (Ok(true), Ok(false)));
}

#[test]
fn a_failure_is_a_variant_with_the_librarys_sentence() {
    let place = Place::new();
    let cache = place.cache();
    let refused = cache.put(-1, &[Input::scalar(&1i32)]).unwrap_err();
    assert!(matches!(&refused, Error::Invalid(text) if text.contains("-1")), "{refused}");
    assert!(matches!(cache.put(1, &[]), Err(Error::Invalid(_))));
    let three = [1u8, 2, 3];
    assert!(matches!(cache.put(1, &[Input::array(&three, &[2, 2])]), Err(Error::Invalid(_))));
    assert!(matches!(cache.reserve(1, &[Spec::of::<u8>(&[-1])]), Err(Error::Invalid(_))));
    assert!(matches!(cache.reserve(1, &[Spec::of::<u64>(&[i64::MAX, 4])]), Err(Error::Invalid(_))));
    let nowhere = ConnectOptions { socket_path: Some("/nowhere/at/all".into()), ..Default::default() };
    assert!(matches!(Client::connect_with(&nowhere), Err(Error::Server(_))));
    let zero = ConnectOptions { socket_path: Some("/a\0b".into()), ..Default::default() };
    assert!(matches!(Client::connect_with(&zero), Err(Error::Invalid(_))));
}

#[test]
fn another_type_is_refused_not_reinterpreted() {
    let place = Place::new();
    let cache = place.cache();
    cache.put(0, &[Input::vector(&[1u16, 2]), Input::bytes(&[0xff])]).unwrap();
    let view = cache.get(0).unwrap().unwrap();
    let column = view.column(0).unwrap();
    assert!(matches!(column.as_slice::<i16>(), Err(Error::Invalid(_))));
    assert!(matches!(column.scalar::<u16>(), Err(Error::Invalid(_))));
    assert!(matches!(column.text(), Err(Error::Invalid(_))));
    assert!(matches!(view.column(2), Err(Error::Invalid(_))));
    cache.put(1, &[Input::raw(Dtype::String, &[0xff], &[1])]).unwrap();
    assert!(matches!(cache.get(1).unwrap().unwrap().column(0).unwrap().text(), Err(Error::Invalid(_))));
}

#[test]
fn a_row_is_written_in_place_and_seen_after_its_commit_only() {
    let place = Place::new();
    let cache = place.cache();
    let specs = [Spec::of::<f32>(&[4, 100]), Spec::of::<i64>(&[]), Spec::new(Dtype::Bytes, &[0])];
    let mut room = cache.reserve(9, &specs).unwrap().unwrap();
    assert_eq!((room.columns(), room.bytes_mut(1).len(), room.bytes_mut(2).len()), (3, 8, 0));
    room.slice_mut::<f32>(0).unwrap().fill(0.5);
    room.slice_mut::<i64>(1).unwrap()[0] = 77;
    assert!(matches!(room.slice_mut::<u64>(1), Err(Error::Invalid(_))));
    assert!(cache.get(9).unwrap().is_none());
    assert_eq!(room.commit(), Ok(true));
    let view = cache.get(9).unwrap().unwrap();
    assert_eq!(view.column(0).unwrap().as_slice::<f32>().unwrap()[399], 0.5);
    assert_eq!(view.column(1).unwrap().scalar(), Ok(77i64));
    assert!(cache.reserve(9, &specs).unwrap().is_none(), "the row is there");
}

#[test]
fn a_reservation_that_is_dropped_is_aborted() {
    let place = Place::new();
    let cache = place.cache();
    let before = cache.stat().unwrap().rows_in_memory;
    drop(cache.reserve(9, &[Spec::of::<u8>(&[100])]).unwrap().unwrap());
    assert_eq!((cache.contains(9), cache.stat().unwrap().rows_in_memory), (Ok(false), before));
    let room = cache.reserve(9, &[Spec::of::<u8>(&[100])]).unwrap().unwrap();
    thread::scope(|scope| scope.spawn(|| assert_eq!(room.commit(), Ok(true))).join().unwrap());
    // by another thread
}

#[test]
fn a_batch_has_its_rows_in_order_with_gaps() {
    let place = Place::new();
    let cache = place.cache();
    for i in 0..100 {
        cache.put(i, &[Input::scalar(&i)]).unwrap();
    }
    let batch = cache.get_batch(&[7, 200, 3]).unwrap();
    assert_eq!((batch.len(), batch.hits()), (3, 2));
    let found: Vec<Option<i64>> =
        batch.iter().map(|row| row.map(|view| view.column(0).unwrap().scalar().unwrap())).collect();
    assert_eq!(found, [Some(7), None, Some(3)]);
    assert!(matches!(cache.get_batch(&[-1]).map(drop), Err(Error::Invalid(_))));
    assert!(cache.get_batch(&[]).unwrap().is_empty());
}

#[test]
fn gather_copies_each_row_to_its_share() {
    let place = Place::new();
    let cache = place.cache();
    for i in 0..10i32 {
        cache.put(i.into(), &[Input::vector(&[i, 10 * i, 100 * i])]).unwrap();
    }
    let (mut to, mut found) = ([-1i32; 12], [true; 3]);
    assert_eq!(cache.gather(&[4, 11, 2], 0, &mut to, &mut found), Ok(2));
    assert_eq!(found, [true, false, true]);
    assert_eq!(to, [4, 40, 400, -1, -1, -1, -1, -1, 2, 20, 200, -1]);
    assert!(matches!(cache.gather_all(&[4, 11, 2], 0, &mut to), Err(Error::NotFound(_))));
    assert_eq!(cache.gather_all(&[4, 2], 0, &mut to[..6]), Ok(()));
    assert_eq!(to[..6], [4, 40, 400, 2, 20, 200]);
    assert!(matches!(cache.gather(&[4, 2], 0, &mut to[..4], &mut found[..2]), Err(Error::Invalid(_))), "too short");
    assert!(matches!(cache.gather(&[4, 2], 0, &mut to[..5], &mut found[..2]), Err(Error::Invalid(_))), "no share");
    assert!(matches!(cache.gather(&[4, 2], 0, &mut to, &mut found), Err(Error::Invalid(_))), "found too long");
    assert_eq!(cache.gather::<i32>(&[], 0, &mut [], &mut []), Ok(0));
}

#[test]
fn a_view_outlives_session_and_server() {
    let place = Place::new();
    let cache = place.cache();
    cache.put(0, &[Input::text("outlives")]).unwrap();
    let view = cache.get(0).unwrap().unwrap();
    place.session.destroy().unwrap();
    assert!(matches!(cache.get(0).map(drop), Err(Error::Gone(_))));
    drop(place);
    assert_eq!(view.column(0).unwrap().text(), Ok("outlives"));
}

#[test]
fn ids_names_and_numbers_of_a_cache_are_told() {
    let place = Place::new();
    let wanted = OpenOptions { tag: Some("v1".into()), label: Some("of people".into()), ..Default::default() };
    let cache = place.session.open(1, &wanted).unwrap();
    for i in 0..5000 {
        cache.put(3 * i, &[Input::scalar(&i)]).unwrap();
    }
    let mut ids = cache.ids().unwrap();
    ids.sort_unstable();
    assert!(ids.into_iter().eq((0..5000).map(|i| 3 * i)));
    assert_eq!(cache.names(), Ok(None));
    cache.set_names(&["image", "label"]).unwrap();
    assert_eq!(cache.names(), Ok(Some(vec!["image".into(), "label".into()])));
    assert!(matches!(cache.set_names(&["other"]), Err(Error::Conflict(_))));
    let stats = cache.stat().unwrap();
    assert_eq!((stats.rows_in_memory, stats.tag(), stats.label()), (5000, "v1".into(), "of people".into()));
    cache.flush().unwrap();
    assert_eq!(cache.check(true), Ok(vec![]));
    let lines = place.client.list().unwrap();
    assert_eq!((lines.len(), lines[0].session_id), (1, place.session.id()));
    assert_eq!(lines[0].stats.unwrap().rows_in_memory, 5000);
    assert!(lines[0].pids.is_empty() || lines[0].pids == [std::process::id() as i32]);
    assert_eq!(place.client.server_info().unwrap().caches, 1);
}

#[test]
fn options_are_passed_on() {
    let place = Place::new();
    let tagged = |tag: &str| OpenOptions { tag: Some(tag.into()), ..Default::default() };
    let cache = place.session.open(1, &tagged("v1")).unwrap();
    assert_eq!(cache.differs(), None);
    assert!(matches!(place.session.open(1, &tagged("v2")).map(drop), Err(Error::Conflict(_))));
    let larger = OpenOptions { limit_bytes: 32 << 20, ..Default::default() };
    assert!(place.session.open(1, &larger).unwrap().differs().unwrap().contains(&(32 << 20).to_string()));
    let existing = OpenOptions { no_create: true, ..Default::default() };
    assert!(matches!(place.session.open(2, &existing).map(drop), Err(Error::NotFound(_))));
    let reader = place.session.open(1, &OpenOptions { read_only: true, ..Default::default() }).unwrap();
    assert!(matches!(reader.put(0, &[Input::scalar(&1u8)]), Err(Error::Permission(_))));
    let other = place.client.session(place.session.id().wrapping_add(1));
    assert!(matches!(other.open(1, &OpenOptions::default()).map(drop), Err(Error::NoSession(_))));
    assert!(matches!(place.session.destroy_cache(7), Err(Error::NotFound(_))));
    let kept = SessionOptions { name: Some("kept".into()), keep: true };
    let kept = place.client.create_session_with(&kept).unwrap();
    assert_eq!(kept.id(), place.client.open_session("kept").unwrap().id());
    assert_eq!(kept.open(1, &OpenOptions::default()).map(drop), Ok(()));
    let lines = place.client.list().unwrap();
    assert!(lines.iter().all(|line| line.stats.unwrap().kept == u32::from(line.session_id == kept.id())));
    let named = || place.client.open_session("one").unwrap().id();
    assert_eq!(named(), named());
}

#[test]
fn a_stream_is_appended_and_waited_for() {
    let place = Place::new();
    let cache = place.session.open(1, &OpenOptions { build: true, ..Default::default() }).unwrap();
    assert_eq!(cache.build_begin(), Ok(Build::Append { next_id: 0 }));
    assert_eq!(cache.append(&[Input::scalar(&5i32)]), Ok(0));
    cache.build_leave().unwrap();
    assert!(matches!(cache.append(&[Input::scalar(&5i32)]), Err(Error::Building(_))));
    assert_eq!(cache.build_begin(), Ok(Build::Append { next_id: 1 }));
    assert_eq!(cache.append(&[Input::scalar(&5i32)]), Ok(1));
    assert!(matches!(cache.build_wait(Some(Duration::from_millis(1))), Err(Error::Timeout(_))));
    cache.build_done().unwrap();
    cache.build_wait(None).unwrap();
    assert_eq!(cache.build_begin(), Ok(Build::Done { rows: 2 }));
}

#[test]
fn a_full_cache_refuses_and_goes_on_giving() {
    let place = Place::new();
    let cache = place.session.open(1, &OpenOptions { limit_bytes: 2 << 20, ..Default::default() }).unwrap();
    let big = vec![3u8; 256 << 10];
    let refused = (0..).find_map(|id| cache.put(id, &[Input::vector(&big)]).err().map(|error| (id, error)));
    let (stored, error) = refused.unwrap();
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert!(stored > 0);
    assert_eq!(cache.get(stored - 1).unwrap().unwrap().column(0).unwrap().bytes(), big);
}

#[test]
fn threads_share_a_cache_and_views_go_from_one_to_another() {
    let place = Place::new();
    let cache = place.cache();
    thread::scope(|scope| {
        for t in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for i in (t..1000).step_by(4) {
                    assert_eq!(cache.put(i, &[Input::scalar(&i)]), Ok(Put::Stored));
                }
            });
        }
    });
    let view = cache.get(999).unwrap().unwrap();
    let seen = thread::scope(|scope| scope.spawn(|| view.column(0).unwrap().scalar::<i64>()).join().unwrap());
    assert_eq!(seen, Ok(999));
    thread::scope(|scope| {
        scope.spawn(move || drop(view)); // Send
    });
}

#[test]
fn the_version_is_told() {
    assert!(libcache::version().starts_with("1."));
}
