// SPDX-License-Identifier: Apache-2.0
//! fill_and_train DIRECTORY [EPOCHS [PROCESSES]]: reads a directory of files in a loop of epochs, as a trainer does. A
//! file comes from the cache, or on a miss from the disk and then into the cache, for the next epoch and for every other
//! process that trains on the same files meanwhile: those that this one starts, and any other. The cache only ever helps:
//! when it is full, dropped or away, training goes on.
use libcache::{Cache, Client, Dtype, Error, OpenOptions, Spec};
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{exit, Command};
use std::{env, iter};

/// Stands for a training step: looks at every byte.
fn train(data: &[u8]) -> u64 {
    data.iter().map(|&byte| u64::from(byte)).sum()
}

/// The cache, as long as it is of use.
struct Rows {
    cache: Option<Cache>,
    full: bool, // it takes no more rows, but still gives those it has
    fingerprint: u64,
}

impl Rows {
    /// Whoever names the same session and cache id shares the cache. The id comes from the files' names, sizes and times,
    /// so that a changed directory is another cache; the tag, all of the fingerprint, tells two apart with the same id.
    fn open(fingerprint: u64) -> Rows {
        let wanted =
            OpenOptions { tag: Some(format!("{fingerprint:016x}")), label: Some("Rust".into()), ..Default::default() };
        let opened = Client::connect()
            .and_then(|client| client.open_session("fill_and_train"))
            .and_then(|session| session.open(fingerprint as u32, &wanted));
        let cache = opened.map_err(|error| eprintln!("{error}: going on without a cache")).ok();
        Rows { cache, full: false, fingerprint }
    }

    /// Decides what a failed call means for the rest of the run.
    fn handle(&mut self, error: Error) {
        match error {
            // Rows are never evicted: what is in stays, the rest comes from the disk each time.
            Error::Full(_) => {
                self.full = true;
                eprintln!("{error}: the rest is read from the disk");
            }
            // Somebody dropped the session, perhaps to make room.
            Error::Gone(_) => {
                eprintln!("{error}: opening a new cache");
                *self = Rows::open(self.fingerprint);
            }
            // No server any more, or a fault: no reason to stop training.
            _ => {
                eprintln!("{error}: going on without a cache");
                self.cache = None;
            }
        }
    }

    /// What training makes of a row that is there.
    fn read(&mut self, id: i64) -> Option<u64> {
        let found = self.cache.as_ref()?.get(id).and_then(|row| {
            row.map(|row| Ok(train(row.column(0)?.bytes()))).transpose() // where it lies: nothing is copied
        });
        found.unwrap_or_else(|error| {
            self.handle(error);
            None
        })
    }

    /// A miss: reads the file straight into the cache's memory if it may, else into memory of its own.
    fn fill(&mut self, id: i64, path: &Path) -> io::Result<u64> {
        let stored = match self.cache.as_ref().filter(|_| !self.full) {
            Some(cache) => fill_in_place(cache, id, path)?,
            None => Ok(None),
        };
        match stored {
            Ok(Some(sum)) => return Ok(sum),
            Ok(None) => {}
            Err(error) => self.handle(error),
        }
        Ok(train(&fs::read(path)?))
    }
}

/// What training makes of the row. None: another process was faster.
fn fill_in_place(cache: &Cache, id: i64, path: &Path) -> io::Result<libcache::Result<Option<u64>>> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut room = match cache.reserve(id, &[Spec::new(Dtype::Bytes, &[bytes as i64])]) {
        Ok(Some(room)) => room,
        Ok(None) => return Ok(Ok(None)),
        Err(error) => return Ok(Err(error)),
    };
    file.read_exact(room.bytes_mut(0))?; // if it fails the row is aborted: nobody sees half of it
    let sum = train(room.bytes_mut(0));
    Ok(room.commit().map(|_| Some(sum)))
}

/// Sorted, so that row i is the same file for everyone.
fn files_of(directory: &str) -> io::Result<Vec<PathBuf>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{directory}: {error}"));
    let mut files =
        fs::read_dir(directory).map_err(named)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

fn fingerprint_of(files: &[PathBuf]) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new(); // always with the same keys
    for path in files {
        let facts = path.metadata()?;
        (path, facts.len(), facts.modified()?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Every file once an epoch. Each process begins elsewhere, so that they share the first epoch's work.
fn train_epochs(files: &[PathBuf], epochs: u32, process: usize, processes: usize) -> io::Result<()> {
    let mut rows = Rows::open(fingerprint_of(files)?);
    let first = files.len() * process / processes;
    for epoch in 1..=epochs {
        let (mut sum, mut hits) = (0, 0);
        for id in (first..files.len()).chain(0..first) {
            sum += match rows.read(id as i64) {
                Some(found) => {
                    hits += 1;
                    found
                }
                None => rows.fill(id as i64, &files[id])?,
            };
        }
        let misses = files.len() - hits;
        println!("epoch {epoch}: {hits} rows from the cache, {misses} from the disk, sum {sum}");
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let number = |i: usize, other: usize| arguments.get(i).map_or(other, |text| text.parse().unwrap_or(other));
    if arguments.len() < 2 {
        eprintln!("usage: {} DIRECTORY [EPOCHS [PROCESSES]]", arguments[0]);
        exit(2);
    }
    let (epochs, processes, process) = (number(2, 3), number(3, 1), number(4, 0));
    // The others are this program once more, told their number.
    let others = (1..processes).filter(|_| process == 0).map(|other| {
        let words = [arguments[1].clone(), epochs.to_string(), processes.to_string(), other.to_string()];
        Command::new(&arguments[0]).args(words).spawn()
    });
    let others = others.collect::<io::Result<Vec<_>>>()?;
    let mine = train_epochs(&files_of(&arguments[1])?, epochs as u32, process, processes);
    let ends = others.into_iter().map(|mut other| Ok(other.wait()?.success()));
    let well = ends.chain(iter::once(mine.map(|()| true))).collect::<io::Result<Vec<bool>>>()?;
    exit(if well.into_iter().all(|well| well) { 0 } else { 1 })
}
