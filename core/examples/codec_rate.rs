//! Gigabytes of a gradient that are thresholded and coded in a second, and scattered, by one core
//! (arXiv 2010.08899). `hpc/show/dct.py` reads the line.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use umbra_core::compress::{Keep, Residual, Threshold, Values, add, len_max, mask_len, tau_of};
use umbra_core::rng::{Purpose, Stream};

/// As many as a dense part of 4 million parameters has, and some turns of it.
const LEN: usize = 1 << 22;
const TURNS: u32 = 21;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let stream = Stream::new(1, Purpose::Test(0));
    let gradients: Vec<Vec<f32>> = (0..4)
        .map(|turn| (0..LEN as u64).map(|at| stream.normal(turn << 32 | at)).collect())
        .collect();
    let mut lines = vec![];
    for share in [0.25, 0.1, 0.01, 0.005, 0.001] {
        let keep = Keep { share, refresh_every: 1000 };
        let (mut values, mut mask) = (vec![0.0; LEN], vec![0; mask_len(LEN)]);
        let mut counts = Box::new([0; 1 << 15]);
        let mut out = vec![0; len_max(LEN, Values::Bf16)];
        let mut threshold = Threshold::default();
        let (mut coding, mut adding, mut bytes, mut elements) = (vec![], vec![], 0, 0);
        let mut sum = vec![0.0; LEN];
        for turn in 0..TURNS {
            let gradient = &gradients[turn as usize % gradients.len()];
            let mut residual =
                Residual { values: &mut values, mask: &mut mask, counts: &mut counts };
            let start = Instant::now();
            let kept =
                residual.send(gradient, &mut threshold, keep, (Values::Bf16, turn), &mut out);
            coding.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            add(&out[..kept.bytes], &mut sum).unwrap();
            adding.push(start.elapsed().as_secs_f64());
            (bytes, elements) = (bytes + kept.bytes, elements + kept.elements);
        }
        let start = Instant::now();
        let tau = tau_of(&gradients[0], share, 0, &mut counts);
        let refresh = start.elapsed().as_secs_f64();
        let rate = |times| 4.0 * LEN as f64 / 1e9 / median(times);
        lines.push(format!(
            "{{\"keep\": {share}, \"encode_gb_per_s\": {:.2}, \"decode_gb_per_s\": {:.2}, \
             \"byte_ratio\": {:.1}, \"element_ratio\": {:.1}, \"refresh_us\": {:.0}, \
             \"tau\": {tau:.3}}}",
            rate(coding),
            rate(adding),
            f64::from(TURNS) * 4.0 * LEN as f64 / bytes as f64,
            f64::from(TURNS) * LEN as f64 / elements as f64,
            1e6 * refresh,
        ));
    }
    println!("[{}]", lines.join(",\n "));
}
