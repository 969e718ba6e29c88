//! Lanes: threads that answer the kernel. Each has a descriptor of the device, a host that it
//! turns, and connections of its own, so that lanes wait for each other nowhere.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use feedrail_initiator::{EngineTurn, ErrorKind, Host, MonotonicTime};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::answers::{Answer, FuseAnswers, Ownership};
use crate::connections::LaneConnections;
use crate::device::{FuseDevice, Received};
use crate::fault::{Absence, ReadFault};
use crate::mailbox::InterruptMailbox;
use crate::open_files::{FileReadiness, OpenFiles};
use crate::protocol::{
    FuseOpcode, FuseRequest, InterruptIn, MAX_TRANSFER_BYTES, REQUEST_BYTES, ReadIn,
};
use crate::reads::{PendingRead, Reads};
use crate::source::SourceTarget;
use crate::tree::{FileTree, SharedTree, TreeNode};

/// Requests that are taken before the host is turned.
const REQUESTS_AT_A_TIME: usize = 32;

/// State that the lanes of a mount share.
pub(crate) struct Shared {
    pub(crate) tree: SharedTree,
    pub(crate) ownership: Ownership,
    pub(crate) mailboxes: Vec<InterruptMailbox>,
    pub(crate) targets: Vec<SourceTarget>,
    /// How long reads wait for a target that is away.
    pub(crate) timeout: Duration,
}

pub(crate) struct MountLane {
    number: usize,
    device: FuseDevice,
    host: Host,
    shared: Arc<Shared>,
    /// The tree that the files were looked up in last.
    tree: Arc<FileTree>,
    connections: LaneConnections,
    files: OpenFiles,
    reads: Reads,
    absence: Absence,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl MountLane {
    /// A lane over a polled host, with the mailbox of that number.
    ///
    /// # Errors
    /// There is no memory for its reads.
    pub(crate) fn new(
        number: usize,
        device: FuseDevice,
        host: Host,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        Ok(Self {
            number,
            device,
            connections: LaneConnections::begin(&host, shared.targets.clone()),
            host,
            tree: shared.tree.get(),
            absence: Absence::new(number, shared.timeout),
            shared,
            files: OpenFiles::default(),
            reads: Reads::new()?,
            request: vec![0; REQUEST_BYTES],
            answer: Vec::new(),
        })
    }

    /// Answers until the file system is unmounted.
    ///
    /// # Errors
    /// The kernel refuses to hand requests out.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut is_armed = false;
        loop {
            if is_armed {
                self.host.arm();
            }
            let Some(mut has_worked) = self.receive()? else { return Ok(()) };
            let now = Host::now();
            has_worked |= self.take_interrupts(now);
            self.start_reads(now);
            let turn = self.host.turn(now);
            has_worked |= self.connections.advance(now) | self.files.advance();
            has_worked |= self.finish_reads(now);
            self.reads.give_up(&self.device, now);
            match turn {
                EngineTurn::SleepUntil(due) if !has_worked && is_armed => {
                    self.sleep(due)?;
                    is_armed = false;
                }
                // Once more, so that nothing is missed that came since.
                EngineTurn::SleepUntil(_) if !has_worked => is_armed = true,
                _ => is_armed = false,
            }
        }
    }

    /// Takes requests, and answers what needs no target; `None` once the file system is unmounted.
    fn receive(&mut self) -> io::Result<Option<bool>> {
        let mut request = std::mem::take(&mut self.request);
        let mut received = Ok(Some(false));
        for _ in 0..REQUESTS_AT_A_TIME {
            match self.device.receive(&mut request) {
                Ok(Received::Request(length)) => self.handle(&request[..length]),
                Ok(Received::Nothing) => break,
                Ok(Received::Unmounted) => {
                    received = Ok(None);
                    break;
                }
                Err(error) => {
                    received = Err(error);
                    break;
                }
            }
            received = Ok(Some(true));
        }
        self.request = request;
        received
    }

    fn handle(&mut self, bytes: &[u8]) {
        let Some(request) = FuseRequest::parse(bytes) else { return };
        let unique = request.header.unique;
        match request.opcode() {
            FuseOpcode::READ => self.take_read(&request),
            FuseOpcode::INTERRUPT => {
                if let Some(InterruptIn { unique }) = request.argument() {
                    self.shared.mailboxes.iter().for_each(|mailbox| mailbox.interrupt(unique));
                }
            }
            // These have no answer.
            FuseOpcode::FORGET | FuseOpcode::BATCH_FORGET => {}
            FuseOpcode::DESTROY => self.device.answer(unique, &[]),
            _ => {
                let tree = self.shared.tree.get();
                let ownership = &self.shared.ownership;
                let answers = FuseAnswers { tree: &tree, ownership, out: &mut self.answer };
                match answers.to(&request) {
                    Answer::Data => self.device.answer(unique, &self.answer),
                    Answer::Error(error) => self.device.fail(unique, error),
                }
            }
        }
    }

    fn take_read(&mut self, request: &FuseRequest<'_>) {
        let (unique, inode) = (request.header.unique, request.header.inode);
        match range(&self.shared.tree.get(), request) {
            Ok((_, 0)) => self.device.answer(unique, &[]),
            Ok(range) => self.reads.push(PendingRead::new(unique, inode, range, Host::now())),
            Err(error) => self.device.fail(unique, error),
        }
    }

    fn take_interrupts(&mut self, now: MonotonicTime) -> bool {
        let interrupted = self.shared.mailboxes[self.number].take();
        interrupted.iter().for_each(|&unique| self.reads.interrupt(unique, now));
        !interrupted.is_empty()
    }

    /// Starts the reads whose files are open, as far as there is memory.
    fn start_reads(&mut self, now: MonotonicTime) {
        let tree = self.shared.tree.get();
        if !Arc::ptr_eq(&tree, &self.tree) {
            self.files.close_others(&tree);
            self.tree = Arc::clone(&tree);
        }
        let waiting = self.reads.take_waiting();
        for read in waiting {
            if !self.reads.has_room() || !read.is_due(now) {
                self.reads.push(read);
                continue;
            }
            let Some(version) = tree.file(read.inode) else {
                self.device.fail(read.unique, Errno::STALE);
                continue;
            };
            let (host, connections) = (&self.host, &mut self.connections);
            let status = self.files.status(host, connections, read.inode, version, now);
            let started = match status {
                FileReadiness::Open(shards) => self.reads.start(host, shards, read),
                FileReadiness::NotYet => {
                    self.reads.push(read);
                    Ok(())
                }
                FileReadiness::Failed(fault) => Err(fault),
            };
            if let Err(fault) = started {
                self.settle(read, fault, now);
            }
        }
        self.files.forget_failed();
    }

    fn finish_reads(&mut self, now: MonotonicTime) -> bool {
        let (mut failed, absence) = (Vec::new(), &mut self.absence);
        let has_moved = self.reads.finish(&self.device, |read, error| match error {
            None => absence.end(),
            Some(error) => failed.push((read, error)),
        });
        for (read, error) in failed {
            let fault = ReadFault::logged(&error, "a read failed");
            if matches!(error.kind(), ErrorKind::Changed(_)) {
                self.files.close(read.inode);
            }
            self.settle(read, fault, now);
        }
        has_moved
    }

    /// Tries a read again that has failed, or tells its reader.
    fn settle(&mut self, read: PendingRead, fault: ReadFault, now: MonotonicTime) {
        match self.absence.verdict(fault, read.begun, now) {
            None => self.reads.push(read.postponed(now)),
            Some(errno) => self.device.fail(read.unique, errno),
        }
    }

    fn sleep(&mut self, due: Option<MonotonicTime>) -> io::Result<()> {
        let mailbox = &self.shared.mailboxes[self.number];
        let now = Host::now();
        let due = due.into_iter().chain(self.reads.next_due(now)).min();
        let timeout = due.map(|due| due.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut ready = [
            PollFd::new(&self.device, PollFlags::IN),
            PollFd::from_borrowed_fd(self.host.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(mailbox.as_fd(), PollFlags::IN),
        ];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.host.acknowledge();
        Ok(())
    }
}

/// The bytes that a READ asks for, as far as the file has them.
fn range(tree: &FileTree, request: &FuseRequest<'_>) -> Result<(u64, u32), Errno> {
    let ReadIn { offset, size, .. } = request.argument().ok_or(Errno::INVAL)?;
    match tree.node(request.header.inode) {
        None => Err(Errno::STALE),
        Some(TreeNode::Folder(_)) => Err(Errno::ISDIR),
        Some(TreeNode::File(version)) => {
            let left = version.size_bytes.saturating_sub(offset);
            // At most 1 MiB.
            let length = left.min(size.into()).min(MAX_TRANSFER_BYTES as u64) as u32;
            Ok((offset, length))
        }
    }
}
