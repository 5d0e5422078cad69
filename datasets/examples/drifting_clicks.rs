//! A day of clicks whose world moves on, as csv: what a model that is trained day after day is for.
//!
//!     cargo run --release -p umbra-datasets --example drifting_clicks -- SEED DAY ROWS FILE.csv
//!
//! Columns: click, user, item, place, hour. Days count from 1, and row i of a day is a function of
//! seed, day and i alone. Users and items are drawn from windows that move on with time, so new
//! ones come all day and old ones go. The logit of a click is the sum of a weight of the user, of
//! the item and of the place, and the product of two vectors of user and item, all of which turn
//! slowly: weight k is w cos(a) + v sin(a) at angle a, the time in days times the drift, so its
//! variance stays.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::fs::File;
use std::io::{BufWriter, Write};

use umbra_core::rng::{Purpose, Stream};

/// Radians a day by which weights turn.
const DRIFT: f64 = 0.35;
/// Users and items of a moment, and new ones a day.
const USERS: Window = Window { wide: 2_000.0, moves: 400.0 };
const ITEMS: Window = Window { wide: 600.0, moves: 240.0 };
const PLACES: u64 = 40;
/// Values of the vectors of a user and an item.
const TASTES: u64 = 4;
/// Logit of a click where all weights are 0.
const BASE: f64 = -1.5;

/// Ids at a time: so many, from the time in days times `moves` on.
struct Window {
    wide: f64,
    moves: f64,
}

impl Window {
    /// The id at the share `u` of the window.
    fn id(&self, time: f64, u: f64) -> u64 {
        (time * self.moves + u * self.wide) as u64
    }
}

/// Streams of random numbers, of what is drawn and of what is planted.
struct World {
    seed: u64,
}

impl World {
    fn stream(&self, column: u32) -> Stream {
        Stream::new(self.seed, Purpose::Synthetic(FIRST_STREAM + column))
    }

    /// Weight `number` of kind `kind` at `time`.
    fn weight(&self, kind: u32, number: u64, time: f64) -> f64 {
        let planted = self.stream(100 + kind);
        let (w, v) = (planted.normal(2 * number), planted.normal(2 * number + 1));
        let angle = DRIFT * time;
        f64::from(w) * angle.cos() + f64::from(v) * angle.sin()
    }

    /// Click, user, item, place, hour of the row `row` of all days, at `time`.
    fn row(&self, row: u64, time: f64) -> [u64; 5] {
        let drawn = |column| self.stream(column).uniform_f64(row);
        // A few users and items are seen often.
        let user = USERS.id(time, drawn(0) * drawn(1));
        let item = ITEMS.id(time, drawn(2) * drawn(3).sqrt());
        let place = (drawn(4) * PLACES as f64) as u64;
        let taste = |kind, id| (0..TASTES).map(move |k| self.weight(kind, id * TASTES + k, time));
        let fits: f64 = taste(0, user).zip(taste(1, item)).map(|(u, i)| u * i).sum();
        let alone = 0.8 * self.weight(2, user, time)
            + 1.2 * self.weight(3, item, time)
            + 0.4 * self.weight(4, place, time);
        let logit = BASE + alone + 0.5 * fits;
        let click = drawn(5) < 1.0 / (1.0 + (-logit).exp());
        [u64::from(click), user, item, place, (time.fract() * 24.0) as u64]
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, day, rows, path] = &arguments[..] else { panic!("expected SEED DAY ROWS FILE.csv") };
    let number = |text: &String| text.parse::<u64>().expect("expected a whole number");
    let (world, day, rows) = (World { seed: number(seed) }, number(day) - 1, number(rows));
    let mut text = BufWriter::new(File::create(path).expect(path));
    writeln!(text, "click,user,item,place,hour").expect(path);
    for row in 0..rows {
        let time = day as f64 + row as f64 / rows as f64;
        let [click, user, item, place, hour] = world.row(day * rows + row, time);
        writeln!(text, "{click},u{user},i{item},p{place},{hour}").expect(path);
    }
    text.flush().expect(path);
}

/// Streams that no preset of `umbra synth` draws from.
const FIRST_STREAM: u32 = 910_000;
