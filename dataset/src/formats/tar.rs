//! Members of a tar archive, and the byte ranges of their data.
//!
//! The crate `tar` parses headers. The iteration over them is here, because it needs the offset of
//! each error, a limit for names, and pax records with line feeds in their values.

use tar::{EntryType, Header};

use super::error::{FormatError, FormatProblem};
use super::shard::{ByteRange, ShardBytes, ShardWindow};

const BLOCK_BYTES: u64 = 512;
const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
/// Limit of extension headers (names and pax records), which are read into memory. Linux permits
/// paths of 4,096 bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// Bytes behind an end mark that are searched for another archive. Writers pad archives with up to
/// 10 KiB of zeros.
const MAX_FILLING_BYTES: u64 = 1 << 20;

/// Place at which the members of an archive end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArchiveEnd {
    /// Block of zeros. Another archive behind it is an error.
    Mark,
    /// End of the shard. Blocks of zeros are skipped.
    Shard,
    /// This offset: the end of a piece of an archive, which has whole members and no end mark.
    Piece(u64),
}

/// Regular file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TarMember {
    /// Path in the archive, with bytes that are not UTF-8 as `\xE9`.
    pub(super) path: String,
    /// Byte range of the file's contents.
    pub(super) data: ByteRange,
    /// Offset of its first header, extended headers included.
    pub(super) begin: u64,
    /// Offset of the end of its last block.
    pub(super) end: u64,
}

/// Iterator over the regular files of an archive.
#[derive(Debug)]
pub(super) struct TarMembers<'a> {
    window: ShardWindow<'a>,
    next: u64,
    archive_end: ArchiveEnd,
}

/// Values of extended headers, which apply to the next member.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<'a> TarMembers<'a> {
    pub(super) fn new(shard: ShardBytes<'a>, archive_end: ArchiveEnd) -> Self {
        Self { window: ShardWindow::new(shard), next: 0, archive_end }
    }

    /// Iterates over a piece of an archive that has whole members and no end mark.
    pub(super) fn of_piece(shard: ShardBytes<'a>, piece: ByteRange) -> Self {
        let archive_end = ArchiveEnd::Piece(piece.end());
        Self { window: ShardWindow::new(shard), next: piece.offset(), archive_end }
    }

    pub(super) fn shard(&self) -> ShardBytes<'a> {
        self.window.shard()
    }

    /// Offset of the next header.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// Returns the next regular file; `None` at the end of the archive.
    pub(super) fn next_member(&mut self) -> Result<Option<TarMember>, FormatError> {
        let mut begin = self.next;
        let mut extended = Extended::default();
        while let Some(header) = self.header()? {
            match header.entry_type() {
                EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink => {
                    self.extend(&header, &mut extended)?;
                    continue;
                }
                EntryType::XGlobalHeader => self.check_global(&header)?,
                kind => {
                    let member = self.member(&header, kind, begin, extended)?;
                    if member.is_some() {
                        return Ok(member);
                    }
                    extended = Extended::default();
                }
            }
            begin = self.next;
        }
        Ok(None)
    }

    fn header(&mut self) -> Result<Option<Header>, FormatError> {
        let shard_end = self.shard().whole().end();
        let end = match self.archive_end {
            ArchiveEnd::Mark => u64::MAX,
            ArchiveEnd::Shard => shard_end,
            ArchiveEnd::Piece(end) => end,
        };
        let expected = "a tar header, or the block of zeros that ends an archive";
        let block = loop {
            if self.next >= end {
                return Ok(None);
            }
            let block: [u8; BLOCK_BYTES as usize] = self.window.array(self.next, expected)?;
            if block != ZEROS {
                break block;
            }
            match self.archive_end {
                ArchiveEnd::Shard => self.next += BLOCK_BYTES,
                ArchiveEnd::Mark => return self.check_nothing_follows().map(|()| None),
                ArchiveEnd::Piece(_) => return Ok(None),
            }
        };
        let header = Header::from_byte_slice(&block).clone();
        if !checksum_is_right(&header) {
            let found = "a block whose checksum is wrong";
            return Err(self.shard().unexpected(self.next, expected, found));
        }
        Ok(Some(header))
    }

    /// Fails if another archive follows the end mark, as after `cat`. Other data may follow it.
    fn check_nothing_follows(&mut self) -> Result<(), FormatError> {
        let expected = "the filling behind an archive";
        let end = self.shard().whole().end().min(self.next + MAX_FILLING_BYTES);
        let mut at = self.next;
        while at + BLOCK_BYTES <= end {
            let block: [u8; BLOCK_BYTES as usize] = self.window.array(at, expected)?;
            if block != ZEROS {
                let is_archive = checksum_is_right(Header::from_byte_slice(&block));
                let problem = FormatProblem::Unsupported {
                    what: "an archive behind the end mark of another one".to_owned(),
                    remedy: "read both by --ignore-zeros or ignore_zeros=True, or join them by \
                        tar --concatenate",
                };
                return if is_archive { Err(self.shard().error(at, problem)) } else { Ok(()) };
            }
            at += BLOCK_BYTES;
        }
        Ok(())
    }

    /// Returns the byte range of the data of the header at `next`, and sets `next` to the end of
    /// its last block.
    fn take_data(&mut self, size: u64, expected: &'static str) -> Result<ByteRange, FormatError> {
        let data = self.shard().range(self.next + BLOCK_BYTES, size, expected)?;
        let padded = size.next_multiple_of(BLOCK_BYTES);
        self.next = self.shard().range(data.offset(), padded, "whole blocks of tar")?.end();
        Ok(data)
    }

    fn size(&self, header: &Header) -> Result<u64, FormatError> {
        let size = header.entry_size();
        size.map_err(|error| self.shard().unexpected(self.next, "the size of a member", error))
    }

    fn extension(&mut self, header: &Header) -> Result<(u64, Vec<u8>), FormatError> {
        let size = self.size(header)?;
        let data = self.take_data(size, "an extended header")?;
        let bytes = self.shard().bytes(data, MAX_EXTENSION_BYTES, "an extended header")?;
        Ok((data.offset(), bytes))
    }

    fn extend(&mut self, header: &Header, extended: &mut Extended) -> Result<(), FormatError> {
        let shard = self.shard();
        let (offset, bytes) = self.extension(header)?;
        match header.entry_type() {
            EntryType::GNULongName => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                extended.path = Some(bytes[..end].to_owned());
            }
            EntryType::XHeader => {
                let applied = extended.apply(&bytes);
                applied.map_err(|problem| shard.error(offset, problem))?;
            }
            // The target of a link, which is not needed: links are no samples.
            _ => {}
        }
        Ok(())
    }

    /// Checks a global header, which applies to all later members, so it must not set path or size.
    fn check_global(&mut self, header: &Header) -> Result<(), FormatError> {
        let shard = self.shard();
        let (offset, bytes) = self.extension(header)?;
        let mut global = Extended::default();
        global.apply(&bytes).map_err(|problem| shard.error(offset, problem))?;
        let harmless = global.path.is_none() && global.size.is_none();
        let refused = || FormatProblem::Unsupported {
            what: "a global pax header with a path or a size".to_owned(),
            remedy: "write the archive without one",
        };
        harmless.then_some(()).ok_or_else(|| shard.error(offset, refused()))
    }

    fn member(
        &mut self,
        header: &Header,
        kind: EntryType,
        begin: u64,
        extended: Extended,
    ) -> Result<Option<TarMember>, FormatError> {
        let (shard, at) = (self.shard(), self.next);
        let unsupported = |what: &str, remedy| {
            Err(shard.error(at, FormatProblem::Unsupported { what: what.to_owned(), remedy }))
        };
        let path = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let is_file = match kind {
            EntryType::GNUSparse => {
                return unsupported("a sparse member", "write the archive without --sparse");
            }
            EntryType::Link => {
                return unsupported("a hard link", "write it with --hard-dereference");
            }
            // Archives from before POSIX mark a directory only by a trailing slash of its name.
            EntryType::Regular => header.as_bytes()[156] != 0 || !path.ends_with(b"/"),
            EntryType::Continuous => true,
            _ => false,
        };
        // These types have no data, whatever their size field contains.
        let has_data = is_file || !(b'1'..=b'6').contains(&kind.as_byte());
        let size = match extended.size {
            _ if !has_data => 0,
            Some(size) => size,
            None => self.size(header)?,
        };
        let data = self.take_data(size, "a member of a tar archive")?;
        if !is_file {
            return Ok(None);
        }
        Ok(Some(TarMember { path: text(&path), data, begin, end: self.next }))
    }
}

/// Converts a path to text, with bytes that are not UTF-8 as `\xE9`.
fn text(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text += chunk.valid();
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02X}");
        }
    }
    text
}

/// Verifies the header checksum: the sum of all bytes, with spaces in place of the checksum field.
fn checksum_is_right(header: &Header) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let bytes = header.as_bytes();
    let expected = sum(&bytes[..148]) + 8 * u32::from(b' ') + sum(&bytes[156..]);
    header.cksum().is_ok_and(|found| found == expected)
}

impl Extended {
    /// Parses pax records. Each consists of its length in decimal digits, a space, `key=value` and
    /// a line feed.
    fn apply(&mut self, mut records: &[u8]) -> Result<(), FormatProblem> {
        while let Some(first) = records.first()
            && *first != 0
        {
            let malformed = || {
                let shown = &records[..records.len().min(80)];
                FormatProblem::unexpected("a record of pax", shown.escape_ascii())
            };
            let (record, rest) = split_record(records).ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = Some(value.to_owned()),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(malformed)?);
                }
                sparse if sparse.starts_with(b"GNU.sparse.") => {
                    return Err(FormatProblem::Unsupported {
                        what: "a sparse member".to_owned(),
                        remedy: "write the archive without --sparse",
                    });
                }
                _ => {}
            }
            records = rest;
        }
        Ok(())
    }
}

/// Returns the `key=value` of the first record, and the records behind it.
fn split_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&records[..digits]).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    Some((record.get(digits + 1..)?.strip_suffix(b"\n")?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: EntryType, path: &str, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_path(path).unwrap();
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    fn entry(kind: EntryType, path: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = header(kind, path, data.len() as u64);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn members(archive: &[Vec<u8>]) -> Result<Vec<TarMember>, FormatError> {
        let bytes = [archive.concat(), vec![0; 1024]].concat();
        all(TarMembers::new(ShardBytes::new(0, &bytes), ArchiveEnd::Mark))
    }

    fn all(mut members: TarMembers<'_>) -> Result<Vec<TarMember>, FormatError> {
        let mut found = Vec::new();
        while let Some(member) = members.next_member()? {
            found.push(member);
        }
        Ok(found)
    }

    #[test]
    fn an_archive_behind_another_is_told_and_read_if_that_is_asked_for() {
        let archive =
            |path: &str| [entry(EntryType::Regular, path, b"text"), vec![0; 9216]].concat();
        let joined = [archive("a.txt"), archive("b.txt")].concat();
        let with = |bytes: &[u8], end| {
            let bytes = bytes.to_vec();
            let found = all(TarMembers::new(ShardBytes::new(0, &bytes), end));
            found.map(|members| members.into_iter().map(|one| one.path).collect::<Vec<_>>())
        };
        let error = with(&joined, ArchiveEnd::Mark).unwrap_err();
        assert_eq!(error.offset, 10240);
        assert!(error.to_string().contains("--ignore-zeros"), "{error}");
        assert_eq!(with(&joined, ArchiveEnd::Shard).unwrap(), ["a.txt", "b.txt"]);
        let alone = archive("a.txt");
        for end in [ArchiveEnd::Mark, ArchiveEnd::Shard] {
            assert_eq!(with(&alone, end).unwrap(), ["a.txt"]);
        }
        // What is no archive may follow: a signature, for instance.
        let signed = [&alone[..], &[7; 600]].concat();
        assert_eq!(with(&signed, ArchiveEnd::Mark).unwrap(), ["a.txt"]);
        with(&signed, ArchiveEnd::Shard).unwrap_err();
        // Without an end mark, an archive ends with its shard only if that is asked for.
        assert_eq!(with(&alone[..1024], ArchiveEnd::Shard).unwrap(), ["a.txt"]);
        with(&alone[..1024], ArchiveEnd::Mark).unwrap_err();
    }

    #[test]
    fn a_path_that_is_no_utf_8_is_text_all_the_same() {
        let mut latin_1 = header(EntryType::Regular, "caf_.txt", 0);
        latin_1[3] = 0xE9;
        let mut latin_1 = Header::from_byte_slice(&latin_1).clone();
        latin_1.set_cksum();
        let found = members(&[latin_1.as_bytes().to_vec(), entry(EntryType::Regular, "b", b"")]);
        let paths: Vec<_> = found.unwrap().into_iter().map(|member| member.path).collect();
        assert_eq!(paths, [r"caf\xE9.txt", "b"]);
        assert_eq!(text("größe".as_bytes()), "größe");
    }

    #[test]
    fn pax_values_may_have_line_feeds_and_win_over_the_header() {
        let archive = |records: &[u8]| {
            [
                entry(EntryType::XHeader, "pax", records),
                // The header says 0, as where a size does not fit it.
                header(EntryType::Regular, "short", 0),
                [&b"abc"[..], &[0; 509]].concat(),
            ]
        };
        let wrong_length = archive(b"14 path=long\n9 size=3\n");
        members(&wrong_length).unwrap_err();
        let right = archive(b"22 SCHILY.xattr.a=b\nc\n13 path=long\n9 size=3\n");
        let members = members(&right).unwrap();
        let [member] = &members[..] else { panic!("{members:?}") };
        assert_eq!((member.path.as_str(), member.begin), ("long", 0));
        assert_eq!((member.data.offset(), member.data.length(), member.end), (1536, 3, 2048));
    }

    #[test]
    fn sizes_that_lie_are_errors_and_no_allocation() {
        for kind in [EntryType::Regular, EntryType::GNULongName, EntryType::XHeader] {
            for size in [1 << 63, u64::MAX, 1 << 40, 4096] {
                let error = members(&[header(kind, "a.txt", size)]).unwrap_err();
                assert!((0..=512).contains(&error.offset), "{error}");
            }
        }
        let pax = entry(EntryType::XHeader, "pax", b"29 size=18446744073709551615\n");
        members(&[pax, entry(EntryType::Regular, "a", b"")]).unwrap_err();
        let long = entry(EntryType::GNULongName, "x", &vec![b'a'; (1 << 20) + 1]);
        let error = members(&[long]).unwrap_err();
        assert!(error.to_string().contains("more than 1048576"), "{error}");
    }

    #[test]
    fn what_has_no_bytes_of_its_own_is_refused() {
        let sparse = entry(EntryType::XHeader, "pax", b"22 GNU.sparse.major=1\n");
        for archive in [
            [entry(EntryType::Link, "link", b""), Vec::new()],
            [entry(EntryType::GNUSparse, "sparse", b""), Vec::new()],
            [sparse, entry(EntryType::Regular, "sparse", b"")],
            [entry(EntryType::XGlobalHeader, "g", b"10 path=a\n"), Vec::new()],
        ] {
            let error = members(&archive).unwrap_err();
            assert!(matches!(error.problem, FormatProblem::Unsupported { .. }), "{error}");
        }
    }

    #[test]
    fn directories_and_links_are_passed_over() {
        let mut old_directory = Header::new_old();
        old_directory.set_path("old/").unwrap();
        old_directory.set_size(0);
        old_directory.as_mut_bytes()[156] = 0;
        old_directory.set_cksum();
        let archive = [
            header(EntryType::Directory, "folder/", 4096),
            old_directory.as_bytes().to_vec(),
            entry(EntryType::Symlink, "symlink", b""),
            entry(EntryType::Fifo, "fifo", b""),
            entry(EntryType::XGlobalHeader, "g", b"13 comment=a\n"),
            entry(EntryType::Regular, "a.txt", b"text"),
        ];
        let members = members(&archive).unwrap();
        assert_eq!(members.len(), 1);
        assert_eq!((members[0].begin, members[0].path.as_str()), (6 * 512, "a.txt"));
    }

    #[test]
    fn a_header_that_was_changed_is_an_error() {
        let mut changed = entry(EntryType::Regular, "a.txt", b"text");
        changed[0] = b'b';
        let error = members(&[changed]).unwrap_err();
        assert_eq!(error.offset, 0);
        assert!(error.to_string().contains("checksum is wrong"), "{error}");
    }

    #[test]
    fn an_archive_without_its_end_is_truncated() {
        let bytes = entry(EntryType::Regular, "a.txt", b"text");
        let mut members = TarMembers::new(ShardBytes::new(0, &bytes), ArchiveEnd::Mark);
        members.next_member().unwrap().unwrap();
        let error = members.next_member().unwrap_err();
        assert_eq!(error.offset, 1024);
        assert!(error.to_string().contains("block of zeros"), "{error}");
    }
}
