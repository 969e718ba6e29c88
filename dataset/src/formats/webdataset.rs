//! WebDataset: a tar archive in which the members of a sample follow each other.
//!
//! Members whose paths are equal up to the first dot of the file name belong to one sample. The
//! range of a sample begins with the header of its first member and ends with the last block of its
//! last one. So its bytes are a tar archive without end mark, which can be parsed separately.

use super::error::{FormatError, FormatProblem};
use super::sample::{KeyedSample, SampleMember};
use super::shard::{ByteRange, ShardBytes, until_error};
use super::tar::{ArchiveEnd, TarMember, TarMembers};

/// Limit above any real sample, which bounds memory and the comparisons of names.
const MAX_MEMBERS: usize = 4096;

/// Returns the samples in the order of the archive. A key that recurs later begins a new sample.
pub(super) fn samples(
    shard: ShardBytes<'_>,
    archive_end: ArchiveEnd,
) -> impl Iterator<Item = Result<KeyedSample, FormatError>> {
    let mut groups = Groups { members: TarMembers::new(shard, archive_end), pending: None };
    until_error(move || groups.next_sample())
}

/// Parses the members of one sample from its bytes: a piece of the archive, as [`ShardFormat`]
/// returns it. Ranges refer to `shard`, which may have bytes outside of the piece.
///
/// # Errors
/// The piece is damaged, or contains no sample or several.
///
/// [`ShardFormat`]: super::ShardFormat
pub fn webdataset_members(
    shard: ShardBytes<'_>,
    piece: ByteRange,
) -> Result<KeyedSample, FormatError> {
    let members = TarMembers::of_piece(shard, piece);
    let mut groups = Groups { members, pending: None };
    let found = match groups.next_sample()? {
        Some(_) if groups.members.position() > piece.end() => "a member that is longer",
        Some(sample) if groups.pending.is_none() => return Ok(sample),
        Some(_) => "members of several keys",
        None => "none",
    };
    Err(shard.unexpected(piece.offset(), "the members of one sample", found))
}

struct Groups<'a> {
    members: TarMembers<'a>,
    /// First member of the next sample, which has been read already.
    pending: Option<KeyedMember>,
}

struct KeyedMember {
    key: String,
    /// Extension in lower case, as decoders expect it.
    name: String,
    member: TarMember,
}

impl Groups<'_> {
    fn next_sample(&mut self) -> Result<Option<KeyedSample>, FormatError> {
        let pending = self.pending.take();
        let Some(first) = pending.map_or_else(|| self.next_member(), |first| Ok(Some(first)))?
        else {
            return Ok(None);
        };
        let (key, begin, mut end) = (first.key.clone(), first.member.begin, 0);
        let mut members: Vec<SampleMember> = Vec::new();
        let mut next = Some(first);
        while let Some(KeyedMember { name, member, .. }) = next.take_if(|next| next.key == key) {
            self.check_new(&members, &name, &member)?;
            end = member.end;
            members.push(SampleMember { name, range: member.data });
            next = self.next_member()?;
        }
        self.pending = next;
        let shard = self.members.shard();
        let sample = shard.sample(shard.range(begin, end - begin, "a sample")?)?;
        Ok(Some(KeyedSample { sample, key: Some(key), members }))
    }

    fn check_new(
        &self,
        members: &[SampleMember],
        name: &str,
        member: &TarMember,
    ) -> Result<(), FormatError> {
        let unexpected =
            |expected, found| Err(self.members.shard().unexpected(member.begin, expected, found));
        if members.iter().any(|known| known.name == name) {
            let found = format!("a second {:?}", member.path);
            return unexpected("one member of each extension in a sample", found);
        }
        if members.len() == MAX_MEMBERS {
            return unexpected("at most 4096 members in a sample", "more".to_owned());
        }
        Ok(())
    }

    fn next_member(&mut self) -> Result<Option<KeyedMember>, FormatError> {
        while let Some(member) = self.members.next_member()? {
            if member.path.contains('\n') {
                let problem = FormatProblem::unexpected("a path of one line", "a line feed");
                return Err(self.members.shard().error(member.begin, problem));
            }
            if is_metadata(&member.path) {
                continue;
            }
            if let Some((key, extension)) = split(&member.path) {
                let (key, name) = (key.to_owned(), extension.to_lowercase());
                return Ok(Some(KeyedMember { key, name, member }));
            }
        }
        Ok(None)
    }
}

/// Whether a member is metadata: the first component of its path begins and ends with `__`.
fn is_metadata(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or(path);
    first.len() >= 4 && first.starts_with("__") && first.ends_with("__")
}

/// Splits a path into key and extension. `None` if the member belongs to no sample.
fn split(path: &str) -> Option<(&str, &str)> {
    let folder_bytes = path.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, file) = path.split_at(folder_bytes);
    let dot = file.find('.')?;
    if dot == 0 {
        // Like WebDataset: a hidden file belongs to the sample named by its folder, unless the name
        // of the folder contains a dot.
        let last = folder.strip_suffix('/')?.rsplit('/').next()?;
        return (!last.contains('.')).then_some((folder, &file[1..]));
    }
    Some((&path[..folder_bytes + dot], &file[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;

    fn archive(paths: impl IntoIterator<Item = String>) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for path in paths {
            let mut header = Header::new_ustar();
            header.set_size(0);
            builder.append_data(&mut header, path, &b""[..]).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn the_bytes_of_a_sample_tell_its_members() {
        let bytes = archive(["a.b", "a.c", "d.b"].map(str::to_owned));
        let shard = ShardBytes::new(7, &bytes);
        for sample in samples(shard, ArchiveEnd::Mark) {
            let sample = sample.unwrap();
            let (offset, length) = (sample.sample.offset.get(), sample.sample.length.get());
            let piece = shard.range(offset, length.into(), "a sample").unwrap();
            assert_eq!(webdataset_members(shard, piece).unwrap(), sample);
            let alone = &bytes[offset as usize..][..length as usize];
            let alone = ShardBytes::new(7, &alone);
            let found = webdataset_members(alone, alone.whole()).unwrap();
            assert_eq!(found.members.len(), sample.members.len());
        }
        for (offset, length, said) in
            [(0, 1536, "several"), (0, 0, "none"), (1, 511, "a tar"), (0, 100, "longer")]
        {
            let piece = shard.range(offset, length, "a piece").unwrap();
            let error = webdataset_members(shard, piece).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    fn members(paths: impl IntoIterator<Item = String>) -> Result<Vec<usize>, FormatError> {
        let bytes = archive(paths);
        samples(ShardBytes::new(0, &bytes), ArchiveEnd::Mark)
            .map(|sample| Ok(sample?.members.len()))
            .collect()
    }

    #[test]
    fn a_sample_has_each_extension_once_and_not_too_many() {
        let one_key = |count: usize| (0..count).map(|number| format!("a.{number}"));
        assert_eq!(members(one_key(4096)).unwrap(), [4096]);
        assert!(members(one_key(4097)).unwrap_err().to_string().contains("at most 4096"));
        let error = members(["a.jpg", "a.JPG"].map(str::to_owned)).unwrap_err();
        assert_eq!(error.offset, 512);
        assert!(error.to_string().contains("one member of each extension"), "{error}");
        assert_eq!(members(["a.b", "c.b", "a.b"].map(str::to_owned)).unwrap(), [1, 1, 1]);
    }

    #[test]
    fn keys_end_at_the_first_dot_of_the_file_name() {
        for (path, expected) in [
            ("a.jpg", Some(("a", "jpg"))),
            ("a.seg.png", Some(("a", "seg.png"))),
            ("./x.y/a.jpg", Some(("./x.y/a", "jpg"))),
            ("a.", Some(("a", ""))),
            ("a", None),
            ("x.y/a", None),
            (".hidden", None),
            ("x.y/.hidden", None),
            ("x/.hidden.z", Some(("x/", "hidden.z"))),
            ("p.q/x/.hidden", Some(("p.q/x/", "hidden"))),
        ] {
            assert_eq!(split(path), expected, "{path}");
        }
    }

    #[test]
    fn metadata_is_known_by_its_first_component() {
        for (path, expected) in [
            ("__meta__", true),
            ("__meta__/a.jpg", true),
            ("__a.b__", true),
            ("____", true),
            ("___", false),
            ("__meta__.json", false),
            ("x/__meta__", false),
        ] {
            assert_eq!(is_metadata(path), expected, "{path}");
        }
    }
}
