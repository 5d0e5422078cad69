//! Compression of HDF5 chunks, independent of HDF5.
//!
//! Map: `deflate` turns shuffled numbers into a zlib stream · `huffman` makes its codes.

mod deflate;
mod huffman;

pub(crate) use deflate::Deflate;
