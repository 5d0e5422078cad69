//! gzip text (RFC 1952): members one after the other, as `cat a.gz b.gz` and bgzip give, and zeros
//! behind the last, as tapes and block devices do. Anything else behind a member is an error.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The text of all members.
pub(crate) enum Members<R> {
    Inside(Box<GzDecoder<R>>),
    Between(R),
    End,
}

impl<R: BufRead> Members<R> {
    pub(crate) fn new(packed: R) -> Self {
        Self::Inside(Box::new(GzDecoder::new(packed)))
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match core::mem::replace(self, Self::End) {
                Self::Inside(mut decoder) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        *self = Self::Inside(decoder);
                        return Ok(read);
                    }
                    *self = Self::Between(decoder.into_inner());
                }
                Self::Between(mut packed) => {
                    let ahead = packed.fill_buf()?;
                    match ahead.iter().position(|&byte| byte != 0) {
                        _ if ahead.is_empty() => return Ok(0),
                        Some(0)
                            if ahead[0] == MAGIC[0]
                                && ahead.get(1).is_none_or(|&b| b == MAGIC[1]) =>
                        {
                            *self = Self::Inside(Box::new(GzDecoder::new(packed)));
                        }
                        Some(0) => {
                            return Err(io::Error::new(io::ErrorKind::InvalidData, TRAILING));
                        }
                        zeros => {
                            let zeros = zeros.unwrap_or(ahead.len());
                            packed.consume(zeros);
                            *self = Self::Between(packed);
                        }
                    }
                }
                Self::End => return Ok(0),
            }
        }
    }
}

const MAGIC: [u8; 2] = [0x1f, 0x8b];

const TRAILING: &str = "bytes that are not gzip follow the compressed text: write it anew with \
                        `zcat`, which leaves them out";
