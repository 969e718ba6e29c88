//! Answers to the requests that need no target.

use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::file::FileVersion;
use crate::protocol::{
    AttributesOut, DirectoryEntries, EntryOut, FuseOpcode, FuseRequest, InodeAttributes, ROOT,
    ReadIn, StatfsOut, XattrIn, XattrOut,
};
use crate::tree::{FileTree, TreeNode};

/// Time for which the kernel may go by what it was told of a name or of attributes. It is told of
/// changes: this bounds how long it goes by an answer that crossed with a change.
const VALID: Duration = Duration::from_secs(60);

const FOLDER_MODE: u32 = libc::S_IFDIR | 0o555;
const FILE_MODE: u32 = libc::S_IFREG | 0o444;
/// Bytes of a block of `statfs`, in which sizes are rounded up.
const STATFS_BLOCK_BYTES: u64 = 4096;
/// The size of reads that `stat` recommends.
const PREFERRED_BYTES: u32 = 1 << 20;

const XATTR_UUID: &str = "user.feedrail.uuid";
const XATTR_GENERATION: &str = "user.feedrail.generation";
const XATTR_TARGET: &str = "user.feedrail.target";

/// Properties that all inodes have in common.
#[derive(Clone, Debug)]
pub(crate) struct Ownership {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// When the file system was mounted, since 1970.
    pub(crate) mounted: Duration,
    /// URLs of the subsystems at their addresses, by the numbers of targets.
    pub(crate) targets: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The bytes that were put in the buffer.
    Data,
    Error(Errno),
}

impl From<Result<(), Errno>> for Answer {
    fn from(result: Result<(), Errno>) -> Self {
        match result {
            Ok(()) => Self::Data,
            Err(error) => Self::Error(error),
        }
    }
}

/// Answers requests out of a tree.
pub(crate) struct FuseAnswers<'a> {
    pub(crate) tree: &'a FileTree,
    pub(crate) ownership: &'a Ownership,
    /// Where the data of the answer goes.
    pub(crate) out: &'a mut Vec<u8>,
}

impl FuseAnswers<'_> {
    /// The answer to any request but reads, those that have none, and those of the connection.
    pub(crate) fn to(mut self, request: &FuseRequest<'_>) -> Answer {
        self.out.clear();
        let inode = request.header.inode;
        match request.opcode() {
            FuseOpcode::LOOKUP => self.lookup(inode, request),
            FuseOpcode::GETATTR => self.attributes(inode),
            FuseOpcode::READDIR => self.list(inode, request, false),
            FuseOpcode::READDIRPLUS => self.list(inode, request, true),
            FuseOpcode::STATFS => self.totals(),
            FuseOpcode::GETXATTR => self.xattr(inode, request),
            FuseOpcode::LISTXATTR => self.xattr_names(inode, request),
            opcode if opcode.changes_something() => Err(Errno::ROFS),
            // The kernel does what it can by itself, and asks no further: of open and opendir,
            // which keep their pages thereby, access, flush, locks, lseek, ioctl, poll and others.
            _ => Err(Errno::NOSYS),
        }
        .into()
    }

    fn node(&self, inode: u64) -> Result<&TreeNode, Errno> {
        self.tree.node(inode).ok_or(Errno::STALE)
    }

    fn lookup(&mut self, inode: u64, request: &FuseRequest<'_>) -> Result<(), Errno> {
        let TreeNode::Folder(folder) = self.node(inode)? else { return Err(Errno::NOTDIR) };
        let name = request.name(0).ok_or(Errno::INVAL)?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        let child = folder.child(name).ok_or(Errno::NOENT)?;
        let entry = EntryOut::new(self.attributes_of(child, self.node(child)?), VALID);
        self.out.extend(entry.as_bytes());
        Ok(())
    }

    fn attributes(&mut self, inode: u64) -> Result<(), Errno> {
        let attributes = self.attributes_of(inode, self.node(inode)?);
        self.out.extend(AttributesOut::new(attributes, VALID).as_bytes());
        Ok(())
    }

    fn attributes_of(&self, inode: u64, node: &TreeNode) -> InodeAttributes {
        let Ownership { uid, gid, mounted, .. } = *self.ownership;
        let (size, mode, modified) = match node {
            TreeNode::Folder(folder) => (folder.len() as u64, FOLDER_MODE, mounted),
            TreeNode::File(version) => {
                (version.size_bytes, FILE_MODE, version.modified().unwrap_or(mounted))
            }
        };
        let (seconds, nanos) = (modified.as_secs(), modified.subsec_nanos());
        InodeAttributes {
            inode,
            size,
            blocks: size.div_ceil(512),
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atime_nanos: nanos,
            mtime_nanos: nanos,
            ctime_nanos: nanos,
            mode,
            // Programs that count on two and the folders in it take one for unknown.
            links: 1,
            uid,
            gid,
            device: 0,
            block_bytes: PREFERRED_BYTES,
            flags: 0,
        }
    }

    fn list(&mut self, inode: u64, request: &FuseRequest<'_>, plus: bool) -> Result<(), Errno> {
        let ReadIn { offset, size, .. } = request.argument().ok_or(Errno::INVAL)?;
        let tree = self.tree;
        let TreeNode::Folder(folder) = tree.node(inode).ok_or(Errno::STALE)? else {
            return Err(Errno::NOTDIR);
        };
        let mut out = std::mem::take(self.out);
        let mut entries = DirectoryEntries::new(&mut out, size as usize);
        // Places 1 and 2 are those of the two that are not looked up, and nothing is kept of them.
        let none = plus.then(EntryOut::default);
        let dots = [(1, inode, "."), (2, folder.parent, "..")];
        let mut has_room = true;
        for (place, inode, name) in dots.into_iter().filter(|(place, ..)| *place > offset) {
            has_room = has_room && entries.push(inode, FOLDER_MODE, place, name.as_bytes(), none);
        }
        for (child, name) in folder.behind(offset.max(ROOT)) {
            let Some(node) = tree.node(child).filter(|_| has_room) else { break };
            let attributes = self.attributes_of(child, node);
            let entry = plus.then(|| EntryOut::new(attributes, VALID));
            has_room = entries.push(child, attributes.mode, child, name.as_bytes(), entry);
        }
        *self.out = out;
        Ok(())
    }

    fn totals(&mut self) -> Result<(), Errno> {
        let totals = StatfsOut {
            blocks: self.tree.bytes().div_ceil(STATFS_BLOCK_BYTES),
            files: self.tree.files(),
            block_bytes: PREFERRED_BYTES.min(STATFS_BLOCK_BYTES as u32),
            fragment_bytes: STATFS_BLOCK_BYTES as u32,
            name_bytes: 255,
            ..StatfsOut::default()
        };
        self.out.extend(totals.as_bytes());
        Ok(())
    }

    fn xattr(&mut self, inode: u64, request: &FuseRequest<'_>) -> Result<(), Errno> {
        let room: XattrIn = request.argument().ok_or(Errno::INVAL)?;
        let name = request.name(size_of::<XattrIn>()).ok_or(Errno::INVAL)?;
        let value = match self.node(inode)? {
            TreeNode::Folder(_) => None,
            TreeNode::File(version) => self.value(version, name),
        };
        let value = value.ok_or(Errno::NODATA)?;
        self.sized(room, value.as_bytes())
    }

    fn xattr_names(&mut self, inode: u64, request: &FuseRequest<'_>) -> Result<(), Errno> {
        let room: XattrIn = request.argument().ok_or(Errno::INVAL)?;
        let mut names = Vec::new();
        if let TreeNode::File(version) = self.node(inode)? {
            for name in [XATTR_UUID, XATTR_GENERATION, XATTR_TARGET] {
                if self.value(version, name.as_bytes()).is_some() {
                    names.extend(name.as_bytes());
                    names.push(0);
                }
            }
        }
        self.sized(room, &names)
    }

    fn value(&self, version: &FileVersion, name: &[u8]) -> Option<String> {
        match std::str::from_utf8(name).ok()? {
            XATTR_UUID => version.uuid_text(),
            XATTR_GENERATION => version.generation_text(),
            XATTR_TARGET => {
                let replicas = version.replicas.iter().filter_map(|replica| {
                    let url = self.ownership.targets.get(replica.target)?;
                    Some(format!("{url}/nsid:{}", replica.nsid.0))
                });
                let urls: Vec<String> = replicas.collect();
                (!urls.is_empty()).then(|| urls.join(" "))
            }
            _ => None,
        }
    }

    /// Answers with a value, or with its length alone.
    fn sized(&mut self, room: XattrIn, value: &[u8]) -> Result<(), Errno> {
        match room.size as usize {
            0 => {
                // Shorter than any request.
                let size = value.len() as u32;
                self.out.extend(XattrOut { size, padding: 0 }.as_bytes());
            }
            room if room < value.len() => return Err(Errno::RANGE),
            _ => self.out.extend(value),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::file::tests::version;
    use crate::protocol::InHeader;
    use crate::tree::NamedFile;

    fn ownership() -> Ownership {
        let targets = vec!["nvmf://192.0.2.1/nqn.2026-01.io.feedrail:a".to_owned()];
        Ownership { uid: 3, gid: 4, mounted: Duration::from_secs(5), targets }
    }

    fn tree(names: &[&str]) -> FileTree {
        let file = |(number, name): (u32, &&str)| NamedFile {
            name: Some((*name).to_owned()),
            number,
            version: Arc::new(version(number, 1_000, 7)),
        };
        FileTree::empty().next(&(1..).zip(names).map(file).collect::<Vec<_>>())
    }

    fn request(opcode: u32, inode: u64, arguments: &[u8]) -> Vec<u8> {
        let length = (size_of::<InHeader>() + arguments.len()) as u32;
        let header =
            InHeader { length, opcode, unique: 9, inode, uid: 0, gid: 0, pid: 0, extension: 0 };
        [header.as_bytes(), arguments].concat()
    }

    fn ask(
        tree: &FileTree,
        opcode: FuseOpcode,
        inode: u64,
        arguments: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let (bytes, mut out) = (request(opcode.0, inode, arguments), Vec::new());
        let ownership = ownership();
        let answers = FuseAnswers { tree, ownership: &ownership, out: &mut out };
        match answers.to(&FuseRequest::parse(&bytes).unwrap()) {
            Answer::Data => Ok(out),
            Answer::Error(error) => Err(error),
        }
    }

    fn inode(tree: &FileTree, folder: u64, name: &str) -> u64 {
        let answer = ask(tree, FuseOpcode::LOOKUP, folder, format!("{name}\0").as_bytes()).unwrap();
        u64::from_ne_bytes(answer[..8].try_into().unwrap())
    }

    fn read_in(offset: u64, size: u32) -> Vec<u8> {
        let (read_flags, flags) = (0, 0);
        let read = ReadIn { handle: 0, offset, size, read_flags, lock_owner: 0, flags, padding: 0 };
        read.as_bytes().to_vec()
    }

    #[test]
    fn names_are_found_and_sizes_exact() {
        let tree = tree(&["x/a"]);
        let folder = inode(&tree, ROOT, "x");
        let file = inode(&tree, folder, "a");
        let answer = ask(&tree, FuseOpcode::GETATTR, file, &[0; 16]).unwrap();
        assert_eq!(u64::from_ne_bytes(answer[24..32].try_into().unwrap()), 1_000);
        assert_eq!(ask(&tree, FuseOpcode::LOOKUP, ROOT, b"none\0"), Err(Errno::NOENT));
        assert_eq!(ask(&tree, FuseOpcode::LOOKUP, ROOT, b"\xff\0"), Err(Errno::NOENT));
        assert_eq!(ask(&tree, FuseOpcode::LOOKUP, file, b"a\0"), Err(Errno::NOTDIR));
        assert_eq!(ask(&tree, FuseOpcode::GETATTR, 999, &[0; 16]), Err(Errno::STALE));
    }

    #[test]
    fn a_list_continues_where_it_stopped() {
        let names: Vec<String> = (0..100).map(|i| format!("file-{i:03}")).collect();
        let tree = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (opcode, front) in [(FuseOpcode::READDIR, 0), (FuseOpcode::READDIRPLUS, 128)] {
            let (mut offset, mut found) = (0, Vec::new());
            loop {
                let list = ask(&tree, opcode, ROOT, &read_in(offset, 600)).unwrap();
                if list.is_empty() {
                    break;
                }
                let mut rest = &list[..];
                while !rest.is_empty() {
                    let entry = &rest[front..];
                    offset = u64::from_ne_bytes(entry[8..16].try_into().unwrap());
                    let length = u32::from_ne_bytes(entry[16..20].try_into().unwrap()) as usize;
                    found.push(String::from_utf8(entry[24..24 + length].to_vec()).unwrap());
                    rest = &rest[(front + 24 + length).next_multiple_of(8)..];
                }
            }
            assert_eq!(found[..2], [".", ".."]);
            assert_eq!(found[2..], names);
        }
    }

    #[test]
    fn attributes_tell_where_a_file_is() {
        let tree = tree(&["a"]);
        let file = inode(&tree, ROOT, "a");
        let get = |name: &str, room: u32| {
            let arguments = [&room.to_ne_bytes(), &[0; 4], name.as_bytes(), &[0][..]].concat();
            ask(&tree, FuseOpcode::GETXATTR, file, &arguments)
        };
        assert_eq!(get(XATTR_GENERATION, 100).unwrap(), b"0000000000000007");
        assert_eq!(get(XATTR_GENERATION, 0).unwrap()[..4], 16u32.to_ne_bytes());
        assert_eq!(get(XATTR_GENERATION, 15), Err(Errno::RANGE));
        assert_eq!(get("security.capability", 100), Err(Errno::NODATA));
        assert!(get(XATTR_TARGET, 1_000).unwrap().ends_with(b":a/nsid:1"));
        let names = ask(&tree, FuseOpcode::LISTXATTR, file, &1_000u64.to_ne_bytes()).unwrap();
        assert_eq!(names.iter().filter(|&&byte| byte == 0).count(), 3);
    }

    #[test]
    fn nothing_can_be_changed() {
        let tree = tree(&["a"]);
        for opcode in [4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51] {
            assert_eq!(
                ask(&tree, FuseOpcode(opcode), ROOT, &[0; 64]),
                Err(Errno::ROFS),
                "{opcode}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_request_panics(
            opcode in 0u32..60, inode in 0u64..20,
            arguments in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = ask(&tree(&["a", "x/b"]), FuseOpcode(opcode), inode, &arguments);
        }
    }
}
