//! Expected checkpoints of a volume after each change, by the full names of entries.

use std::collections::BTreeMap;

use feedrail_checkpoint::{Change, CheckpointName, EntrySelection, Rename};
use splitmix64::SplitMix64;

/// Checkpoints of a volume: bytes of entries by name of checkpoint and entry.
pub(crate) type Contents = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Bytes of entries by names of checkpoint and entry.
type Paths = BTreeMap<(String, String), Vec<u8>>;

/// Change of names, with all that a volume is told.
#[derive(Clone, Debug)]
pub(crate) enum NameChange {
    Remove(String, Option<String>),
    Rename { from: (String, Option<String>), to: (String, Option<String>), is_replacing: bool },
}

/// Reason why a change of names is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Exists,
    Kind,
}

/// Names of entries that are made and renamed.
const ENTRIES: [&str; 6] = ["rank0/model", "rank1/model", "dir/a", "dir/b", "c", "dir/sub/d"];
/// Selections: checkpoints, folders and entries.
const SELECTIONS: [Option<&str>; 5] =
    [None, Some("dir/"), Some("rank0/"), Some("c"), Some("dir/a")];

/// Returns the name of a file, which may be there already.
pub(crate) fn random_file(random: &mut SplitMix64) -> &'static str {
    ENTRIES[random.index(ENTRIES.len())]
}

/// Returns the name of a checkpoint that is there or not.
pub(crate) fn random_checkpoint(random: &mut SplitMix64, contents: &Contents) -> String {
    let present = contents.keys().nth(random.index(contents.len() + 1)).cloned();
    present.unwrap_or_else(|| format!("files-{}", random.below(3)))
}

impl NameChange {
    pub(crate) fn random(random: &mut SplitMix64, contents: &Contents) -> Self {
        let mut selected = || {
            let checkpoint = random_checkpoint(random, contents);
            let entries = contents.get(&checkpoint).filter(|_| random.chance(500_000));
            let entry = entries.and_then(|all| all.keys().nth(random.index(all.len())).cloned());
            let other = || SELECTIONS[random.index(SELECTIONS.len())].map(str::to_owned);
            (checkpoint, entry.or_else(other))
        };
        let (from, to) = (selected(), selected());
        match random.chance(300_000) {
            true => Self::Remove(from.0, from.1),
            false => Self::Rename { from, to, is_replacing: random.chance(500_000) },
        }
    }

    /// Adds it to a change of a volume.
    pub(crate) fn add_to<'a>(
        &self,
        change: Change<'a>,
        now_ms: u64,
    ) -> Result<Change<'a>, Refusal> {
        let selection = |text: &Option<String>| EntrySelection::parse(text.as_deref()).unwrap();
        let place = |(checkpoint, text): &(String, Option<String>)| {
            (CheckpointName::new(checkpoint).unwrap(), selection(text))
        };
        match self {
            Self::Remove(checkpoint, text) => Ok(change.remove(checkpoint, selection(text))),
            Self::Rename { from, to, is_replacing } => {
                let rename = Rename::new(place(from), place(to), *is_replacing, now_ms);
                Ok(change.rename(rename.map_err(|_| Refusal::Kind)?))
            }
        }
    }

    /// Returns the checkpoints after the change.
    pub(crate) fn apply(&self, contents: &Contents) -> Result<Contents, Refusal> {
        match self {
            Self::Remove(checkpoint, text) => {
                let mut paths = flatten(contents);
                let before = paths.len();
                paths.retain(|(one, entry), _| !(one == checkpoint && is_selected(entry, text)));
                if paths.len() == before { Err(Refusal::Missing) } else { Ok(nest(paths)) }
            }
            Self::Rename { from, to, is_replacing } => rename(contents, from, to, *is_replacing),
        }
    }
}

fn is_selected(entry: &str, text: &Option<String>) -> bool {
    match text.as_deref() {
        None => true,
        Some(folder) if folder.ends_with('/') => entry.starts_with(folder),
        Some(name) => entry == name,
    }
}

fn rename(
    contents: &Contents,
    from: &(String, Option<String>),
    to: &(String, Option<String>),
    is_replacing: bool,
) -> Result<Contents, Refusal> {
    let is_entry = |text: &Option<String>| text.as_ref().is_some_and(|one| !one.ends_with('/'));
    if is_entry(&from.1) != is_entry(&to.1) {
        return Err(Refusal::Kind);
    }
    if !contents.contains_key(&from.0) {
        return Err(Refusal::Missing);
    }
    let is_whole = from.1.is_none() && to.1.is_none();
    if is_whole && from.0 != to.0 && contents.contains_key(&to.0) {
        return Err(Refusal::Exists);
    }
    let (moved, mut after): (Paths, Paths) = flatten(contents)
        .into_iter()
        .partition(|((one, entry), _)| *one == from.0 && is_selected(entry, &from.1));
    if moved.is_empty() {
        return Err(Refusal::Missing);
    }
    for ((_, entry), bytes) in moved {
        let rest = &entry[from.1.as_ref().map_or(0, String::len)..];
        let name = format!("{}{rest}", to.1.as_deref().unwrap_or(""));
        put(&mut after, (&to.0, &name), bytes, is_replacing)?;
    }
    Ok(nest(after))
}

fn put(
    paths: &mut Paths,
    (checkpoint, entry): (&str, &str),
    bytes: Vec<u8>,
    is_replacing: bool,
) -> Result<(), Refusal> {
    let has = |folder: &str, name: &str| name.starts_with(&format!("{folder}/"));
    let others = paths.keys().filter(|(one, _)| one == checkpoint);
    if others.into_iter().any(|(_, other)| has(other, entry) || has(entry, other)) {
        return Err(Refusal::Exists);
    }
    let replaced = paths.insert((checkpoint.to_owned(), entry.to_owned()), bytes);
    if replaced.is_some() && !is_replacing { Err(Refusal::Exists) } else { Ok(()) }
}

/// Returns the checkpoints after a file was closed.
pub(crate) fn with_file(
    contents: &Contents,
    place: (&str, &str),
    bytes: Vec<u8>,
) -> Result<Contents, Refusal> {
    let mut paths = flatten(contents);
    put(&mut paths, place, bytes, true)?;
    Ok(nest(paths))
}

fn flatten(contents: &Contents) -> Paths {
    let path = |(checkpoint, entries): (&String, &BTreeMap<String, Vec<u8>>)| {
        let checkpoint = checkpoint.clone();
        let entries = entries.clone().into_iter();
        entries.map(move |(entry, bytes)| ((checkpoint.clone(), entry), bytes)).collect::<Vec<_>>()
    };
    contents.iter().flat_map(path).collect()
}

fn nest(paths: Paths) -> Contents {
    let mut contents = Contents::new();
    for ((checkpoint, entry), bytes) in paths {
        contents.entry(checkpoint).or_default().insert(entry, bytes);
    }
    contents
}
