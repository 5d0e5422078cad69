//! Tables of several widths, cut into strips.
//!
//! All records of a run have one size, so that a row number alone says where a row lives. A table
//! whose vectors are wider is several *strips*: strip j has columns j·w to (j + 1)·w of every
//! vector, in records of its own, and is a table to everything that deals, holds, sends and
//! updates rows. An id is then a row of every strip of its field. What has a state for a whole row
//! (row-wise Adagrad, the count of updates of lazy Adam) has it for each of its strips, as where
//! columns of a table are dealt to several places elsewhere ("column-wise sharding" of TorchRec).
//!
//! `starts` `[S + 1]` are the first strips of the fields, ascending from 0, and the last's end.

use crate::batch::Jagged;

/// Where bags of strips are written: as many as are needed ([`cut_len`]) or more.
#[derive(Debug)]
pub struct CutInto<'a> {
    /// `[values]`
    pub values: &'a mut [u32],
    /// `[n · strips + 1]`
    pub offsets: &'a mut [u32],
    /// `[values]`, or `[0]` where ids have no weights.
    pub weights: &'a mut [f32],
}

/// Values of the bags of all strips of `bags`, which are those of fields.
#[must_use]
pub fn cut_len(starts: &[u32], bags: Jagged<'_>) -> usize {
    let strips = starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize).cycle();
    let lengths = bags.offsets.windows(2).map(|ends| (ends[1] - ends[0]) as usize);
    lengths.zip(strips).map(|(length, strips)| length * strips).sum()
}

/// Writes a bag for every strip of every field: that of the field. Returns them.
///
/// # Panics
/// When there is too little memory.
#[expect(clippy::cast_possible_truncation, reason = "values of a batch are counted in u32s")]
pub fn cut<'a>(starts: &[u32], bags: Jagged<'_>, into: CutInto<'a>) -> Jagged<'a> {
    let CutInto { values, offsets, weights } = into;
    let (mut bag, mut end) = (0, 0);
    offsets[0] = 0;
    let strips = starts.windows(2).map(|ends| ends[1] - ends[0]).cycle();
    for (ends, strips) in bags.offsets.windows(2).zip(strips) {
        let own = ends[0] as usize..ends[1] as usize;
        for _ in 0..strips {
            let to = end..end + own.len();
            values[to.clone()].copy_from_slice(&bags.values[own.clone()]);
            if !bags.weights.is_empty() {
                weights[to].copy_from_slice(&bags.weights[own.clone()]);
            }
            end += own.len();
            bag += 1;
            offsets[bag] = end as u32;
        }
    }
    let weights_len = if bags.weights.is_empty() { 0 } else { end };
    Jagged { values: &values[..end], offsets: &offsets[..=bag], weights: &weights[..weights_len] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strip_has_the_bag_of_its_field() {
        let bags = Jagged {
            values: &[7, 8, 9, 5],
            offsets: &[0, 2, 3, 3, 4],
            weights: &[0.5, 1.0, 2.0, 3.0],
        };
        let starts = [0, 2, 3];
        assert_eq!(cut_len(&starts, bags), 2 * 2 + 1 + 1);
        let (mut values, mut offsets, mut weights) = ([0; 8], [9; 7], [0.0; 8]);
        let into = CutInto { values: &mut values, offsets: &mut offsets, weights: &mut weights };
        let cut = cut(&starts, bags, into);
        assert_eq!(cut.values, [7, 8, 7, 8, 9, 5]);
        assert_eq!(cut.offsets, [0, 2, 4, 5, 5, 5, 6]);
        assert_eq!(cut.weights, [0.5, 1.0, 0.5, 1.0, 2.0, 3.0]);
    }
}
