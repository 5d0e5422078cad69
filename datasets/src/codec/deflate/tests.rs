//! What comes back from a stream, and how it was cut.

use super::*;
use proptest::prelude::*;
use std::io::Read;

fn compressed(data: &[u8], plane: usize) -> Vec<u8> {
    let (mut deflate, mut stream) = (Deflate::default(), vec![7; 3]);
    // Twice: nothing of a chunk is left in the buffers for the next.
    deflate.compress(&data[..data.len() / 2], plane, &mut stream);
    deflate.compress(data, plane, &mut stream);
    stream
}

/// What flate2 makes of `stream`, which must end where the zlib stream ends.
fn inflated(stream: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut decoder = flate2::bufread::ZlibDecoder::new(stream);
    decoder.read_to_end(&mut data).expect("a zlib stream with a good checksum");
    assert!(decoder.into_inner().is_empty());
    data
}

#[test]
fn lengths_of_matches_are_written_as_the_table_of_the_rfc_says() {
    // §3.2.5: (length, symbol, extra bits, their value)
    for (length, symbol, extra_bits, extra) in [
        (3, 257, 0, 0),
        (10, 264, 0, 0),
        (12, 265, 1, 1),
        (130, 280, 4, 15),
        (131, 281, 5, 0),
        (257, 284, 5, 30),
        (258, 285, 0, 0),
    ] {
        let found = MATCH_SYMBOLS[length - MATCH_MIN];
        assert_eq!(
            (found.symbol, found.extra_bits, found.extra),
            (symbol, extra_bits, extra),
            "{length}"
        );
    }
}

/// [`Deflate::find_runs`], byte by byte.
fn plain_runs(data: &[u8]) -> Vec<(usize, usize)> {
    let (mut segments, mut start, mut at) = (Vec::new(), 0, 1);
    while at < data.len() {
        let repeats = data[at..].iter().take_while(|&&byte| byte == data[at - 1]).count();
        if repeats >= RUN_MIN {
            let left = repeats % MATCH_MAX;
            let run = repeats - if left < MATCH_MIN { left } else { 0 };
            segments.push((at - start, run));
            start = at + run;
        }
        at += repeats + 1;
    }
    segments.push((data.len() - start, 0));
    segments
}

proptest! {
    #[test]
    fn runs_are_found_as_byte_by_byte(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(0u8.., 0..70),
                prop::collection::vec(0u8..2, 0..70),
                (0u8..2, 0usize..20).prop_map(|(byte, length)| vec![byte; length]),
                (0u8.., 250usize..270).prop_map(|(byte, length)| vec![byte; length]),
            ],
            0..20,
        ),
    ) {
        let data = pieces.concat();
        let mut deflate = Deflate::default();
        deflate.find_runs(&data);
        let found: Vec<_> = deflate.segments.iter().map(|s| (s.literals, s.run)).collect();
        prop_assert_eq!(found, plain_runs(&data));
    }
}

#[test]
fn runs_of_every_length_come_back() {
    for run in (0..40).chain(250..280).chain(510..530).chain([65_534, 65_535, 65_536, 200_000]) {
        for data in [vec![5; run], [vec![1, 2], vec![5; run], vec![6, 5]].concat()] {
            for plane in [1, 300, 70_000] {
                if data.len() / plane < 1000 {
                    assert_eq!(inflated(&compressed(&data, plane)), data, "{run}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_shrink_grows_by_headers_alone() {
    let noise: Vec<u8> =
        (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 7).to_le_bytes()[0]).collect();
    let stream = compressed(&noise, 100_000);
    assert!(stream.len() <= noise.len() + 30, "{}", stream.len());
    assert_eq!(inflated(&stream), noise);
}

/// Counts of 1, 1, 2, 3, 5, …: without a limit their codes would have more than 9 bits.
#[test]
fn codes_are_cut_to_their_limit() {
    let (mut a, mut b) = (1usize, 1);
    let mut data = Vec::new();
    for byte in 0..20u8 {
        data.extend((0..a).map(|_| byte));
        (a, b) = (b, a + b);
    }
    // Far from its equals: no runs.
    let stride = 7919;
    let mixed: Vec<u8> = (0..data.len()).map(|i| data[i * stride % data.len()]).collect();
    assert_eq!(inflated(&compressed(&mixed, mixed.len())), mixed);
}

proptest! {
    #[test]
    fn any_inflate_gives_the_data_back(
        parts in prop::collection::vec(
            prop_oneof![
                (any::<u8>(), 1usize..600).prop_map(|(byte, run)| vec![byte; run]),
                prop::collection::vec(any::<u8>(), 0..80),
                prop::collection::vec(0u8..6, 0..300),
            ],
            0..30,
        ),
        plane in 1usize..3000,
    ) {
        let data = parts.concat();
        prop_assert_eq!(inflated(&compressed(&data, plane)), data);
    }
}
