//! Our own encoder as the examples measure it beside libraries; no part of the interface.

use crate::codec::Deflate;

/// A zlib stream of one shuffled chunk of `elements`, as a dataset holds it.
pub fn deflate(encoder: &mut Encoder, chunk: &[u8], elements: usize, stream: &mut Vec<u8>) {
    encoder.0.compress(chunk, elements, stream);
}

/// Buffers of [`deflate`].
#[derive(Debug, Default)]
pub struct Encoder(Deflate);
