//! Reads and writes, as the public calls hand them to the engine.

/// Direction of a range. `fua`: Force Unit Access, by which a successful write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeDirection {
    Read,
    Write { fua: bool },
}
