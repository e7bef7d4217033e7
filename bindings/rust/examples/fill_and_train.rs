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
        Ok(train(&fs::read(path).map_err(named(path))?))
    }
}

/// What training makes of the row. None: another process was faster.
fn fill_in_place(cache: &Cache, id: i64, path: &Path) -> io::Result<libcache::Result<Option<u64>>> {
    let mut file = File::open(path).map_err(named(path))?;
    let bytes = file.metadata().map_err(named(path))?.len();
    let mut room = match cache.reserve(id, &[Spec::new(Dtype::Bytes, &[bytes as i64])]) {
        Ok(Some(room)) => room,
        Ok(None) => return Ok(Ok(None)),
        Err(error) => return Ok(Err(error)),
    };
    file.read_exact(room.bytes_mut(0)).map_err(named(path))?; // if it fails the row is aborted: nobody sees half of it
    let sum = train(room.bytes_mut(0));
    Ok(room.commit().map(|_| Some(sum)))
}

/// What the system does not say: of which file or directory.
fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Sorted, so that row i is the same file for everyone.
fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(named(directory))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

fn fingerprint_of(files: &[PathBuf]) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new(); // always with the same keys
    for path in files {
        let facts = path.metadata().map_err(named(path))?;
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

fn usage(program: &str) -> String {
    format!(
        "usage: {program} DIRECTORY [EPOCHS [PROCESSES]]\n\
         Reads each file of DIRECTORY in EPOCHS epochs (3, unless given) and PROCESSES processes (1), through a cache."
    )
}

/// Of epochs or processes: at least 1.
fn number(name: &str, text: Option<&String>, otherwise: u32) -> Result<u32, String> {
    let text = match text {
        None => return Ok(otherwise),
        Some(text) => text,
    };
    let wrong = || format!("{name} is '{text}', not a whole number from 1 to {}", u32::MAX);
    text.parse().ok().filter(|&n| n >= 1).ok_or_else(wrong)
}

/// Epochs and processes.
fn numbers(words: &[String]) -> Result<(u32, u32), String> {
    if words[0].starts_with('-') {
        return Err(format!("unknown option {}", words[0])); // a directory of such a name: ./-name
    }
    Ok((number("EPOCHS", words.get(1), 3)?, number("PROCESSES", words.get(2), 1)?))
}

/// process: 0 starts the others, which are this program once more, told their number. Whether all have ended well.
fn run(program: &str, directory: &str, epochs: u32, processes: u32, process: u32) -> io::Result<bool> {
    let others = (1..processes).filter(|_| process == 0).map(|other| {
        let words = [directory, &epochs.to_string(), &processes.to_string(), &other.to_string()];
        Command::new(program).args(words).spawn()
    });
    let others = others.collect::<io::Result<Vec<_>>>()?;
    let mine = files_of(Path::new(directory))
        .and_then(|files| train_epochs(&files, epochs, process as usize, processes as usize));
    let ends = others.into_iter().map(|mut other| Ok(other.wait()?.success()));
    let well = ends.chain(iter::once(mine.map(|()| true))).collect::<io::Result<Vec<bool>>>()?;
    Ok(well.into_iter().all(|well| well))
}

fn main() {
    let (program, words) = (env::args().next().unwrap_or_default(), env::args().skip(1).collect::<Vec<_>>());
    if matches!(words.first().map(String::as_str), Some("--help" | "-h")) {
        println!("{}", usage(&program));
        exit(0);
    }
    if words.is_empty() || words.len() > 4 {
        eprintln!("{}", usage(&program));
        exit(2);
    }
    let (epochs, processes) = numbers(&words).unwrap_or_else(|wrong| {
        eprintln!("{}\n{program}: {wrong}", usage(&program));
        exit(2)
    });
    let process = words.get(3).and_then(|text| text.parse().ok()).unwrap_or(0); // given by the first process only
    let well = run(&program, &words[0], epochs, processes, process).unwrap_or_else(|error| {
        eprintln!("{error}");
        false
    });
    exit(if well { 0 } else { 1 })
}
