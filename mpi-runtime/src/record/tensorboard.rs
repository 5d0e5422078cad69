//! TensorBoard event files, written without TensorFlow.
//!
//! A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): length u64, masked
//! CRC-32C of the length u32, data, masked CRC-32C of the data u32, all little-endian; the mask is
//! `((crc >> 15) | (crc << 17)) + 0xa282ead8`. The data is a protocol buffer `Event`
//! (tensorflow/core/util/event.proto): `double wall_time = 1; int64 step = 2; string file_version =
//! 3; Summary summary = 5`, with `Summary { repeated Value value = 1 }` and `Value { string tag =
//! 1; float simple_value = 2 }`. The first event holds the version "brain.Event:2".

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Writer of one event file.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// Creates `events.out.tfevents.SECONDS.HOST.umbra` in `folder`; `wall_time` is in seconds
    /// since 1970.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(folder: &Path, host: &str, wall_time: f64) -> Result<Self, Error> {
        let path = folder.join(format!("{PREFIX}{wall_time:010.0}.{host}.umbra"));
        let file = File::create(&path).map_err(|source| Error::file(&path, "create it", source))?;
        let mut writer = Self { file, path };
        let mut event = Vec::new();
        double(&mut event, 1, wall_time);
        bytes(&mut event, 3, b"brain.Event:2");
        writer.record(&event)?;
        Ok(writer)
    }

    /// Appends scalars of one step.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn scalars(
        &mut self,
        step: u64,
        wall_time: f64,
        scalars: &[(&str, f64)],
    ) -> Result<(), Error> {
        if scalars.is_empty() {
            return Ok(());
        }
        self.record(&event(step, wall_time, scalars))
    }

    /// Appends an event.
    pub(super) fn record(&mut self, data: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(&frame(data));
        written.map_err(|source| Error::file(&self.path, "write to it", source))
    }
}

/// Beginning of the names of event files.
pub(super) const PREFIX: &str = "events.out.tfevents.";

/// An `Event` with a summary.
fn event(step: u64, wall_time: f64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut item = Vec::new();
        bytes(&mut item, 1, tag.as_bytes());
        float(&mut item, 2, *value);
        bytes(&mut summary, 1, &item);
    }
    event_with(step, wall_time, &summary)
}

/// An `Event` with this summary.
pub(super) fn event_with(step: u64, wall_time: f64, summary: &[u8]) -> Vec<u8> {
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    number(&mut event, 2, step);
    bytes(&mut event, 5, summary);
    event
}

/// One TFRecord.
fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_crc(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked_crc(data).to_le_bytes());
    record
}

/// The checksum of TFRecords.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

// Wire types of protocol buffers.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

fn tag(out: &mut Vec<u8>, field: u8, wire: u8) {
    out.push((field << 3) | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// A field that is a number or a boolean.
pub(super) fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    tag(out, field, VARINT);
    varint(out, value);
}

/// A field that is text, bytes or a message.
pub(super) fn bytes(out: &mut Vec<u8>, field: u8, data: &[u8]) {
    tag(out, field, LENGTH);
    varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

/// A field that is an f64.
pub(super) fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    tag(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

#[expect(clippy::cast_possible_truncation, reason = "TensorBoard's scalars are f32")]
fn float(out: &mut Vec<u8>, field: u8, value: f64) {
    tag(out, field, FIXED32);
    out.extend_from_slice(&(value as f32).to_le_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
pub(super) mod tests {
    use super::*;

    /// RFC 3720 section B.4: CRC-32C of 32 zero bytes is 0x8a9136aa, of 32 bytes 0xff 0x62a8ab43.
    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&[0xff; 32]), 0x62a8_ab43);
        // crc >> 15 | crc << 17 of the first, plus the constant, by hand.
        assert_eq!(0x8a91_36aa_u32 >> 15, 0x1_1522);
        let masked = (0x1_1522_u32 + (0x8a91_36aa_u32 << 17)).wrapping_add(0xa282_ead8);
        assert_eq!(masked_crc(&[0; 32]), masked);
    }

    #[derive(Debug, Default, PartialEq)]
    struct Decoded {
        wall_time: f64,
        step: u64,
        version: String,
        scalars: Vec<(String, f32)>,
    }

    fn take<'a>(from: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, rest) = from.split_at(count);
        *from = rest;
        taken
    }

    fn read_varint(from: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = take(from, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    /// Fields of a message, by number: raw fixed bytes, varints as bytes, or nested bytes.
    pub(in crate::record) fn fields(mut message: &[u8]) -> Vec<(u8, Vec<u8>, &[u8])> {
        let mut found = Vec::new();
        while !message.is_empty() {
            let tag = take(&mut message, 1)[0];
            let (number, empty): (u8, &[u8]) = (tag >> 3, &[]);
            found.push(match tag & 7 {
                0 => (number, read_varint(&mut message).to_le_bytes().to_vec(), empty),
                1 => (number, take(&mut message, 8).to_vec(), empty),
                2 => {
                    let length = read_varint(&mut message) as usize;
                    (number, Vec::new(), take(&mut message, length))
                }
                5 => (number, take(&mut message, 4).to_vec(), empty),
                wire => panic!("wire type {wire}"),
            });
        }
        found
    }

    /// The events of a file, whose checksums are right.
    pub(in crate::record) fn records(mut file: &[u8]) -> Vec<&[u8]> {
        let mut events = Vec::new();
        while !file.is_empty() {
            let length = take(&mut file, 8);
            let crc = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(crc(take(&mut file, 4)), masked_crc(length));
            let data = take(&mut file, u64::from_le_bytes(length.try_into().unwrap()) as usize);
            assert_eq!(crc(take(&mut file, 4)), masked_crc(data));
            events.push(data);
        }
        events
    }

    fn decode(file: &[u8]) -> Vec<Decoded> {
        let mut events = Vec::new();
        for data in records(file) {
            let mut event = Decoded::default();
            for (number, fixed, nested) in fields(data) {
                match number {
                    1 => event.wall_time = f64::from_le_bytes(fixed.try_into().unwrap()),
                    2 => event.step = u64::from_le_bytes(fixed.try_into().unwrap()),
                    3 => event.version = String::from_utf8(nested.to_vec()).unwrap(),
                    5 => {
                        for (_, _, value) in fields(nested) {
                            let parts = fields(value);
                            let tag = String::from_utf8(parts[0].2.to_vec()).unwrap();
                            let number = f32::from_le_bytes(parts[1].1.clone().try_into().unwrap());
                            event.scalars.push((tag, number));
                        }
                    }
                    number => panic!("field {number}"),
                }
            }
            events.push(event);
        }
        events
    }

    /// Decoded here by a reader written from the formats above. The same file was read once by
    /// TensorBoard 2.21.0's `EventAccumulator`, which gave back the same wall times, steps and
    /// values.
    #[test]
    fn an_event_file_decodes_to_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path(), "node1", 1_700_000_000.5).unwrap();
        let long = "x".repeat(300);
        writer.scalars(0, 1.0, &[("train/logloss", 0.25)]).unwrap();
        writer.scalars(u64::from(u32::MAX) + 7, 2.0, &[("a", -1.5), (&long, 1e30)]).unwrap();
        writer.scalars(9, 3.0, &[]).unwrap();
        let path = folder.path().join("events.out.tfevents.1700000000.node1.umbra");
        let events = decode(&std::fs::read(path).unwrap());
        let event = |wall_time, step, scalars: &[(&str, f32)]| Decoded {
            wall_time,
            step,
            version: String::new(),
            scalars: scalars.iter().map(|(tag, value)| ((*tag).into(), *value)).collect(),
        };
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].version, "brain.Event:2");
        assert_eq!(events[1], event(1.0, 0, &[("train/logloss", 0.25)]));
        assert_eq!(events[2], event(2.0, (1 << 32) + 6, &[("a", -1.5), (&long, 1e30)]));
    }
}
