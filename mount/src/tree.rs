//! The folders and files of a mount, as a snapshot; and what changed from one to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use feedrail_dataset::Name;
use feedrail_initiator::Nsid;

use crate::file::FileVersion;
use crate::path;
use crate::protocol::ROOT;

/// The first number of an inode besides the root. Lower ones are places in the list of a folder.
const FIRST_INODE: u64 = 16;

/// A file to be put in the tree.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    /// A peer's text, which may be no path.
    pub(crate) name: Option<String>,
    /// Number that it is called by if the name cannot be used.
    pub(crate) number: u32,
    pub(crate) version: Arc<FileVersion>,
}

/// A folder or a file.
#[derive(Clone, Debug)]
pub(crate) enum TreeNode {
    Folder(Folder),
    File(Arc<FileVersion>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) parent: u64,
    /// Inodes of the entries by their names.
    children: BTreeMap<Box<str>, u64>,
    /// Names by inode, which is the order in which they are listed: a name that is added later
    /// comes behind those that a reader has seen.
    listed: BTreeMap<u64, Box<str>>,
}

impl Folder {
    pub(crate) fn child(&self, name: &str) -> Option<u64> {
        self.children.get(name).copied()
    }

    pub(crate) fn behind(&self, inode: u64) -> impl Iterator<Item = (u64, &str)> {
        self.listed.range(inode.saturating_add(1)..).map(|(&inode, name)| (inode, &**name))
    }

    /// Folders in it and itself, as its count of links tells.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    fn add(&mut self, name: &str, inode: u64) {
        self.children.insert(name.into(), inode);
        self.listed.insert(inode, name.into());
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FileTree {
    nodes: BTreeMap<u64, TreeNode>,
    /// Inodes by path, of files and folders: those that stay have the same ones in the next tree.
    inodes: BTreeMap<String, u64>,
    /// Next inode: none is used twice.
    next: u64,
    bytes: u64,
    files: u64,
}

/// A cached thing that the kernel is to forget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outdated {
    Entry {
        parent: u64,
        name: Box<str>,
    },
    /// The pages of a file, or the list of a folder.
    Inode(u64),
}

impl FileTree {
    /// A tree without files.
    pub(crate) fn empty() -> Self {
        let root = Folder { parent: ROOT, ..Folder::default() };
        Self {
            nodes: [(ROOT, TreeNode::Folder(root))].into(),
            inodes: [(String::new(), ROOT)].into(),
            next: FIRST_INODE,
            bytes: 0,
            files: 0,
        }
    }

    /// A tree of these files. Files of this tree keep their inodes, under another name too.
    ///
    /// A file has the path that its name is. One whose name is no path, or is that of a folder or
    /// of a file before, is called `namespace-NUMBER` in the root folder; if that is taken as well,
    /// with a `~` behind, or several.
    pub(crate) fn next(&self, files: &[NamedFile]) -> Self {
        let folders = folders_of(files);
        let before = Inodes::of(self);
        let mut next = Self { next: self.next, ..Self::empty() };
        let mut left = Vec::new();
        for file in files {
            let name = file.name.as_deref().filter(|name| path::parts(name).is_some());
            match name.filter(|name| !folders.contains(*name) && next.is_free(name)) {
                Some(name) => next.add(&before, name, &file.version),
                None => left.push(file),
            }
        }
        for file in left {
            let mut name = Name::of_nameless(file.number).to_string();
            while folders.contains(&*name) || !next.is_free(&name) {
                name.push('~');
            }
            next.add(&before, &name, &file.version);
        }
        next
    }

    fn is_free(&self, path: &str) -> bool {
        !self.inodes.contains_key(path)
    }

    fn add(&mut self, before: &Inodes<'_>, path: &str, version: &Arc<FileVersion>) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.folder(before.tree, folder);
        let mut same = before.candidates(path, version).filter(|inode| {
            let old = before.tree.file(*inode);
            old.is_some_and(|old| old.is_same_as(version)) && !self.nodes.contains_key(inode)
        });
        let inode = same.next();
        drop(same);
        let inode = inode.unwrap_or_else(|| self.new_inode());
        self.insert(path, parent, name, inode, TreeNode::File(Arc::clone(version)));
        self.bytes = self.bytes.saturating_add(version.size_bytes);
        self.files += 1;
    }

    /// The inode of a folder, which is made with those around it.
    fn folder(&mut self, before: &Self, path: &str) -> u64 {
        if let Some(&inode) = self.inodes.get(path) {
            return inode;
        }
        let (around, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.folder(before, around);
        let same = before.inodes.get(path).copied();
        let same =
            same.filter(|inode| matches!(before.nodes.get(inode), Some(TreeNode::Folder(_))));
        let inode = same.unwrap_or_else(|| self.new_inode());
        let folder = Folder { parent, ..Folder::default() };
        self.insert(path, parent, name, inode, TreeNode::Folder(folder));
        inode
    }

    fn insert(&mut self, path: &str, parent: u64, name: &str, inode: u64, node: TreeNode) {
        self.inodes.insert(path.to_owned(), inode);
        self.nodes.insert(inode, node);
        if let Some(TreeNode::Folder(folder)) = self.nodes.get_mut(&parent) {
            folder.add(name, inode);
        }
    }

    fn new_inode(&mut self) -> u64 {
        let inode = self.next;
        self.next += 1;
        inode
    }

    pub(crate) fn node(&self, inode: u64) -> Option<&TreeNode> {
        self.nodes.get(&inode)
    }

    /// A file, unless the inode is that of a folder, or of a version that is gone.
    pub(crate) fn file(&self, inode: u64) -> Option<&Arc<FileVersion>> {
        match self.node(inode)? {
            TreeNode::File(version) => Some(version),
            TreeNode::Folder(_) => None,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many files there are.
    pub(crate) fn files(&self) -> u64 {
        self.files
    }

    /// Names and inodes of this tree that the next one has no longer, or has changed: names first.
    pub(crate) fn outdated(&self, next: &Self) -> Vec<Outdated> {
        let mut outdated = Vec::new();
        for (inode, node) in &self.nodes {
            let now = next.nodes.get(inode);
            match (node, now) {
                (TreeNode::Folder(old), Some(TreeNode::Folder(new))) if old != new => {
                    outdated.push(Outdated::Inode(*inode));
                }
                (_, None) => outdated.push(Outdated::Inode(*inode)),
                _ => {}
            }
            let TreeNode::Folder(old) = node else { continue };
            let stays = |name: &str, child| match now {
                Some(TreeNode::Folder(new)) => new.child(name) == Some(child),
                _ => false,
            };
            let gone = old.children.iter().filter(|&(name, &child)| !stays(name, child));
            outdated.extend(
                gone.map(|(name, _)| Outdated::Entry { parent: *inode, name: name.clone() }),
            );
        }
        outdated.sort();
        outdated
    }
}

/// The inodes of a tree by what a file may be known again by.
struct Inodes<'a> {
    tree: &'a FileTree,
    /// Inodes of files by the targets and namespaces that have them.
    by_namespace: BTreeMap<(usize, Nsid), u64>,
}

impl<'a> Inodes<'a> {
    fn of(tree: &'a FileTree) -> Self {
        let files = tree.nodes.iter().filter_map(|(&inode, node)| match node {
            TreeNode::File(version) => Some((inode, version)),
            TreeNode::Folder(_) => None,
        });
        let by_namespace = files.flat_map(|(inode, version)| {
            version.replicas.iter().map(move |replica| ((replica.target, replica.nsid), inode))
        });
        Self { tree, by_namespace: by_namespace.collect() }
    }

    /// Inodes that a file may have had: that of its namespace, and that of its path.
    fn candidates(&self, path: &str, version: &FileVersion) -> impl Iterator<Item = u64> {
        let first = version.replicas.first();
        let renamed = first.and_then(|it| self.by_namespace.get(&(it.target, it.nsid)));
        renamed.into_iter().chain(self.tree.inodes.get(path)).copied()
    }
}

fn folders_of(files: &[NamedFile]) -> BTreeSet<&str> {
    let names = files.iter().filter_map(|file| file.name.as_deref());
    let names = names.filter(|name| path::parts(name).is_some());
    names.flat_map(|name| name.match_indices('/').map(|(end, _)| &name[..end])).collect()
}

/// The tree of a mount, which is replaced as a whole.
pub(crate) struct SharedTree(RwLock<Arc<FileTree>>);

impl SharedTree {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(Arc::new(FileTree::empty())))
    }

    pub(crate) fn get(&self) -> Arc<FileTree> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the tree for all that come from now on.
    pub(crate) fn set(&self, tree: FileTree) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tree);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::version;

    fn file(name: Option<&str>, number: u32, generation: u64) -> NamedFile {
        let version = Arc::new(version(number, 10, generation));
        NamedFile { name: name.map(str::to_owned), number, version }
    }

    fn named(names: &[&str]) -> Vec<NamedFile> {
        (1..).zip(names).map(|(number, name)| file(Some(name), number, 1)).collect()
    }

    /// All paths, those of folders with a slash.
    fn paths(tree: &FileTree) -> Vec<String> {
        let path = |(path, inode): (&String, &u64)| match tree.node(*inode).unwrap() {
            TreeNode::Folder(_) => format!("{path}/"),
            TreeNode::File(_) => path.clone(),
        };
        tree.inodes.iter().map(path).collect()
    }

    fn inode(tree: &FileTree, path: &str) -> u64 {
        tree.inodes[path]
    }

    #[test]
    fn slashes_make_folders() {
        let tree = FileTree::empty().next(&named(&["b", "x/y/c", "x/a"]));
        assert_eq!(paths(&tree), ["/", "b", "x/", "x/a", "x/y/", "x/y/c"]);
        assert_eq!((tree.files(), tree.bytes()), (3, 30));
        let Some(TreeNode::Folder(folder)) = tree.node(inode(&tree, "x")) else {
            panic!("a folder")
        };
        assert_eq!((folder.parent, folder.len()), (ROOT, 2));
        let behind: Vec<_> = folder.behind(0).map(|(_, name)| name).collect();
        assert_eq!(behind, ["y", "a"]);
        assert_eq!(folder.behind(inode(&tree, "x/y")).count(), 1);
        assert_eq!(folder.behind(u64::MAX).count(), 0);
    }

    #[test]
    fn names_that_cannot_be_paths_are_numbers() {
        let long = "n".repeat(256);
        let mut files = named(&["..", "a//b", "/etc/passwd", "x/../y", &long, "ok"]);
        files.push(file(None, 70, 1));
        let tree = FileTree::empty().next(&files);
        let expected = ["/", "namespace-1", "namespace-2", "namespace-3", "namespace-4"];
        assert_eq!(paths(&tree)[..5], expected);
        assert_eq!(paths(&tree)[5..], ["namespace-5", "namespace-70", "ok"]);
    }

    #[test]
    fn a_name_is_that_of_one_thing() {
        // A file that is a folder as well, one name twice, and a made-up name that is taken.
        let tree = FileTree::empty().next(&named(&["a", "a/b", "same", "same", "namespace-1"]));
        let expected = ["/", "a/", "a/b", "namespace-1", "namespace-1~", "namespace-4", "same"];
        assert_eq!(paths(&tree), expected);
        let of = |path: &str| tree.file(inode(&tree, path)).unwrap().replicas[0].nsid.0;
        assert_eq!((of("same"), of("namespace-1"), of("namespace-1~")), (3, 5, 1));
    }

    #[test]
    fn what_stays_keeps_its_inode() {
        let before = FileTree::empty().next(&named(&["x/a", "x/b", "c"]));
        let same = before.next(&named(&["x/a", "x/b", "c"]));
        assert_eq!(before.outdated(&same), []);
        let mut files = named(&["x/a", "x/b", "c"]);
        files[1] = file(Some("x/b"), 2, 2);
        files.push(file(Some("new"), 9, 1));
        let next = before.next(&files);
        assert_eq!(inode(&next, "x/a"), inode(&before, "x/a"));
        assert_ne!(inode(&next, "x/b"), inode(&before, "x/b"));
        assert!(next.node(inode(&before, "x/b")).is_none(), "the old version is gone");
        let folder = inode(&before, "x");
        let mut expected = [
            Outdated::Inode(ROOT),
            Outdated::Inode(folder),
            Outdated::Inode(inode(&before, "x/b")),
            Outdated::Entry { parent: folder, name: "b".into() },
        ];
        expected.sort();
        assert_eq!(before.outdated(&next), expected);
    }

    #[test]
    fn a_renamed_file_is_the_same() {
        let before = FileTree::empty().next(&named(&["a", "x/b", "c"]));
        // Two that exchange their names, and one that goes to another folder.
        let next = before.next(&named(&["c", "y/b", "a"]));
        for (old, new) in [("a", "c"), ("x/b", "y/b"), ("c", "a")] {
            assert_eq!(inode(&next, new), inode(&before, old), "{new}");
        }
        let outdated = before.outdated(&next);
        let entry = |parent, name: &str| Outdated::Entry { parent, name: name.into() };
        assert!(outdated.contains(&entry(ROOT, "a")) && outdated.contains(&entry(ROOT, "c")));
        assert!(outdated.contains(&entry(inode(&before, "x"), "b")));
        assert!(!outdated.contains(&Outdated::Inode(inode(&before, "a"))), "its pages stay");
        // A different file of the name has a new inode.
        let mut files = named(&["c", "y/b", "a"]);
        files[0] = file(Some("c"), 9, 1);
        let replaced = next.next(&files);
        assert_ne!(inode(&replaced, "c"), inode(&next, "c"));
    }

    #[test]
    fn a_file_becomes_a_folder_and_goes() {
        let before = FileTree::empty().next(&named(&["a"]));
        let next = before.next(&[file(Some("a/b"), 2, 1)]);
        let old = inode(&before, "a");
        assert_ne!(inode(&next, "a"), old);
        let mut expected = [
            Outdated::Inode(ROOT),
            Outdated::Inode(old),
            Outdated::Entry { parent: ROOT, name: "a".into() },
        ];
        expected.sort();
        assert_eq!(before.outdated(&next), expected);
        let none = next.next(&[]);
        assert_eq!(paths(&none), ["/"]);
        assert_eq!(next.outdated(&none).len(), 5);
    }
}
