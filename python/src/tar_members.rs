//! Members of WebDataset samples, for `feedrail.formats.webdataset`.

use std::io;

use feedrail_dataset::formats::{ReadAt, ShardBytes, webdataset_members as members_of};
use pyo3::prelude::*;

use crate::errors;
use crate::exported::ExportedBytes;

impl ReadAt for ExportedBytes<'_> {
    fn len(&self) -> u64 {
        self.length() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        self.copy(at, into).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Name, first byte and length in bytes of a member.
type MemberPlace = (String, u64, u64);

/// Returns key and members of the sample in the bytes from `begin` to `end`.
#[pyfunction]
pub(crate) fn webdataset_members(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    begin: u64,
    end: u64,
) -> PyResult<(String, Vec<MemberPlace>)> {
    let bytes = ExportedBytes::of(data)?;
    let shard = ShardBytes::new(0, &bytes);
    let piece = shard.range(begin, end.saturating_sub(begin), "a sample");
    let sample = piece.and_then(|piece| members_of(shard, piece));
    let sample = sample.map_err(|error| errors::format(py, &error))?;
    let members = sample.members.into_iter();
    let members = members.map(|member| (member.name, member.range.offset(), member.range.length()));
    Ok((sample.key.unwrap_or_default(), members.collect()))
}
