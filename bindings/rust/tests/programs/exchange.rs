// SPDX-License-Identifier: Apache-2.0
//! exchange_rust write|read SESSION CACHE IMAGES LABELS: the Rust side of tests/exchange/test_exchange.py; what a row is
//! stands in exchange.c there.
use libcache::{Cache, Client, Dtype, Input, OpenOptions, Put};
use std::env;
use std::error::Error;
use std::fs;

const PIXELS: usize = 28 * 28;
const NAMES: [&str; 4] = ["image", "label", "mean", "word"];
const WORDS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

struct Row<'a> {
    image: &'a [u8],
    label: i64,
    mean: f32,
    word: &'a str,
}

fn make_row(image: &[u8], label: u8) -> Row<'_> {
    let sum: u32 = image.iter().map(|&pixel| u32::from(pixel)).sum();
    Row { image, label: label.into(), mean: sum as f32 / PIXELS as f32, word: WORDS[usize::from(label)] }
}

fn write(cache: &Cache, id: i64, row: &Row) -> libcache::Result<()> {
    let columns = [
        Input::array(row.image, &[28, 28]),
        Input::scalar(&row.label),
        Input::scalar(&row.mean),
        Input::text(row.word),
    ];
    assert_eq!(cache.put(id, &columns)?, Put::Stored, "row {id}");
    Ok(())
}

fn compare(cache: &Cache, id: i64, row: &Row) -> libcache::Result<()> {
    let view = cache.get(id)?.unwrap_or_else(|| panic!("row {id} is missing"));
    assert_eq!(view.columns(), NAMES.len());
    let image = view.column(0)?;
    assert_eq!((image.dtype(), image.shape()), (Dtype::Uint8, &[28, 28][..]), "row {id}");
    assert_eq!(image.bytes(), row.image, "row {id}");
    assert!(view.column(1)?.shape().is_empty() && view.column(2)?.shape().is_empty(), "row {id}");
    assert_eq!(view.column(1)?.scalar::<i64>()?, row.label, "row {id}");
    assert_eq!(view.column(2)?.scalar::<f32>()?, row.mean, "row {id}");
    assert_eq!(view.column(3)?.text()?, row.word, "row {id}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let writes = arguments[1] == "write";
    let (images, labels) = (fs::read(&arguments[4])?, fs::read(&arguments[5])?);
    let session = Client::connect()?.session(arguments[2].parse()?);
    let cache = session.open(arguments[3].parse()?, &OpenOptions::default())?;
    if writes {
        cache.set_names(&NAMES)?;
    }
    assert_eq!(cache.names()?.unwrap_or_default(), NAMES);
    let labels = &labels[8..];
    for (i, (image, &label)) in images[16..].chunks_exact(PIXELS).zip(labels).enumerate() {
        let row = make_row(image, label);
        if writes {
            write(&cache, i as i64, &row)?;
        } else {
            compare(&cache, i as i64, &row)?;
        }
    }
    println!("{} rows", labels.len());
    Ok(())
}
