//! CRC-32C of whole namespaces.

use std::io;
use std::time::Duration;

use feedrail_initiator::{
    Class, Entry, Error, Grant, Host, Namespace, PlanError, Region, Shards, Submit,
};

/// Bytes that are read by one plan.
const STEP_BYTES: u32 = 16 << 20;

/// CRC-32C in progress of a namespace, which is read from its beginning to its end with background
/// priority.
pub(crate) struct Checksum {
    shards: Shards,
    region: Region,
    bytes: Vec<u8>,
    at: u64,
    crc32c: u32,
}

impl Checksum {
    /// Allocates the memory, without reading yet.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub(crate) fn new(namespace: Namespace) -> Result<Self, Error> {
        let region = Region::allocate(STEP_BYTES as usize, Grant::Persistent)?;
        let shards = Shards::new([namespace])?;
        Ok(Self { shards, region, bytes: Vec::new(), at: 0, crc32c: 0 })
    }

    /// Reads the next bytes, and returns the CRC-32C if all have been read.
    ///
    /// # Errors
    /// The error of the read.
    pub(crate) fn step(&mut self, host: &Host) -> Result<Option<u32>, Error> {
        let size_bytes = self.shards.get(0).map_or(0, Namespace::size_bytes);
        let left = size_bytes - self.at;
        if left == 0 {
            return Ok(Some(self.crc32c));
        }
        // At most `STEP_BYTES`, which fits 32 bits.
        let length = left.min(STEP_BYTES.into()) as u32;
        let plan = [Entry { shard: 0, length, offset: self.at, dst: 0 }];
        let options = Submit { deadline: None, class: Class::Background };
        let ticket = host.submit(&self.shards, &plan, &self.region, options);
        let ticket = ticket.map_err(|error| match error {
            PlanError::Host(error) => error,
            other => io::Error::other(other).into(),
        })?;
        while !ticket.wait(usize::MAX, Some(Duration::from_secs(1))).is_done() {}
        if let Some(error) = ticket.error(0) {
            return Err(error);
        }
        drop(ticket);
        self.bytes.resize(length as usize, 0);
        self.region.copy_out(0, &mut self.bytes).map_err(io::Error::other)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &self.bytes);
        self.at += u64::from(length);
        Ok(None)
    }
}
