//! The gradients that a server has and that are no member of an aggregate yet.
//!
//! A push comes from a worker, and that it is a member from the coordinator, in any order between
//! different batches. A batch that was handed out twice may come twice: the second is told from the
//! first without remembering every batch, since a place serves one batch after the other.
//!
//! Invariants: each batch is taken once, however often it comes. A call that is refused changes
//! nothing.

use core::fmt;

/// One of the places of batches under way.
#[derive(Clone, Debug)]
pub struct Place<P> {
    /// The last batch that came.
    batch: Option<u64>,
    /// Its push, until it is taken.
    push: Option<P>,
}

impl<P> Default for Place<P> {
    fn default() -> Self {
        Self { batch: None, push: None }
    }
}

/// The pushes of batches under way, each at its place.
#[derive(Debug)]
pub struct Arrivals<'a, P> {
    places: &'a mut [Place<P>],
}

/// What becomes of a push.
#[derive(Debug, PartialEq, Eq)]
pub enum Came<P> {
    /// Kept.
    Kept,
    /// The batch has come before: of no use.
    Twin(P),
    /// The batch before it at this place is not taken yet: to be offered again when it is.
    Early(P),
}

/// A call that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// There is no such place.
    Place {
        /// Its number.
        got: usize,
        /// How many there are.
        places: usize,
    },
    /// The batch is not there.
    Missing {
        /// Its number.
        batch: u64,
        /// Where it should be.
        place: usize,
        /// The last that came there.
        last: Option<u64>,
    },
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place { got, places } => write!(f, "place {got}; there are {places}"),
            Self::Missing { batch, place, last: Some(last) } => {
                write!(f, "no gradient of batch {batch} at place {place}, where {last} came last")
            }
            Self::Missing { batch, place, last: None } => {
                write!(f, "no gradient of batch {batch} at place {place}, where none came")
            }
        }
    }
}

impl core::error::Error for Misplaced {}

impl<'a, P> Arrivals<'a, P> {
    /// Over as many places as the coordinator has.
    #[must_use]
    pub fn new(places: &'a mut [Place<P>]) -> Self {
        places.iter_mut().for_each(|place| *place = Place::default());
        Self { places }
    }

    /// The push of `batch` at its place.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn push(&mut self, place: usize, batch: u64, push: P) -> Result<Came<P>, Misplaced> {
        let it = self.place(place)?;
        if it.batch.is_some_and(|last| batch <= last) {
            return Ok(Came::Twin(push));
        }
        if it.push.is_some() {
            return Ok(Came::Early(push));
        }
        (it.batch, it.push) = (Some(batch), Some(push));
        Ok(Came::Kept)
    }

    /// The push of `batch`, which has become a member.
    ///
    /// # Errors
    /// When it is not there.
    pub fn take(&mut self, place: usize, batch: u64) -> Result<P, Misplaced> {
        let it = self.place(place)?;
        let last = it.batch;
        let push = if last == Some(batch) { it.push.take() } else { None };
        push.ok_or(Misplaced::Missing { batch, place, last })
    }

    /// The push that is kept at a place.
    #[must_use]
    pub fn waiting(&self, place: usize) -> Option<&P> {
        self.places.get(place)?.push.as_ref()
    }

    /// Pushes that are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.places.iter().filter(|place| place.push.is_some()).count()
    }

    fn place(&mut self, got: usize) -> Result<&mut Place<P>, Misplaced> {
        let places = self.places.len();
        self.places.get_mut(got).ok_or(Misplaced::Place { got, places })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_taken_once_however_often_it_comes() {
        let mut places = [const { Place { batch: None, push: None } }; 2];
        let mut it = Arrivals::new(&mut places);
        assert_eq!(it.push(1, 4, 'a'), Ok(Came::Kept));
        assert_eq!(it.push(1, 4, 'b'), Ok(Came::Twin('b')), "before it is taken");
        assert_eq!(it.push(1, 9, 'c'), Ok(Came::Early('c')), "its turn has not come");
        let missing = Misplaced::Missing { batch: 9, place: 1, last: Some(4) };
        assert_eq!(it.take(1, 9), Err(missing));
        assert_eq!((it.take(1, 4), it.kept()), (Ok('a'), 0));
        assert_eq!(it.push(1, 4, 'd'), Ok(Came::Twin('d')), "after it is taken");
        assert_eq!(it.push(1, 9, 'c'), Ok(Came::Kept));
        assert_eq!(it.push(1, 4, 'e'), Ok(Came::Twin('e')), "after the next has come");
        assert_eq!(it.take(1, 9), Ok('c'));
        let none = Misplaced::Missing { batch: 9, place: 0, last: None };
        assert_eq!(
            (it.take(0, 9), it.push(2, 9, 'f')),
            (Err(none), Err(Misplaced::Place { got: 2, places: 2 }),)
        );
    }
}
