//! Reads local files with io_uring: one thread with up to 64 reads in flight.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use core::ptr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::process;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use feedrail_initiator::{Entry, Grant, RegionSlice};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use super::blocks::{BLOCK_BYTES, CHUNK_BYTES, chunks, is_aligned, whole_blocks};
use super::local_files::file;
use super::pool::RangeReader;

/// Maximum number of reads in flight.
const DEPTH: usize = 64;

/// Reader with an io_uring instance of its own.
pub(super) struct UringReader {
    ring: IoUring,
    files: Arc<[File]>,
    /// Bounce buffer of one chunk for each read in flight, for files opened with `O_DIRECT`.
    bounce: Option<RegionSlice>,
}

impl UringReader {
    /// Creates a ring. `past_cache` says that the files were opened with `O_DIRECT`.
    pub(super) fn new(files: Arc<[File]>, past_cache: bool) -> Result<Self> {
        let ring = IoUring::new(DEPTH as u32).context("io_uring is not available")?;
        let chunks = || RegionSlice::allocate(DEPTH * CHUNK_BYTES as usize, Grant::PerCommand);
        Ok(Self { ring, files, bounce: past_cache.then(chunks).transpose()? })
    }
}

impl RangeReader for UringReader {
    fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64> {
        let base = entries.first().map_or(0, |entry| entry.dst);
        let bounce = self.bounce.as_mut().and_then(RegionSlice::as_mut_slice);
        let mut pass = UringPass {
            ring: &mut self.ring,
            files: &self.files,
            into: into.as_mut_ptr(),
            into_bytes: into.len(),
            bounce: bounce.map(<[u8]>::as_mut_ptr),
            places: [None; DEPTH],
            idle: (0..DEPTH).collect(),
        };
        let mut chunks = chunks(entries).map(|chunk| Entry { dst: chunk.dst - base, ..chunk });
        let (mut asked_bytes, mut failure) = (0, None);
        loop {
            if failure.is_none() {
                match pass.fill_queue(&mut chunks) {
                    Ok(bytes) => asked_bytes += bytes,
                    Err(error) => failure = Some(error),
                }
            }
            if pass.idle.len() == DEPTH {
                return failure.map_or(Ok(asked_bytes), Err);
            }
            pass.turn()?;
            failure = failure.or(pass.reap().err());
        }
    }
}

/// Reads of one call of `read`. Dropping it waits for all of them.
struct UringPass<'a> {
    ring: &'a mut IoUring,
    files: &'a [File],
    /// The caller's buffer, borrowed exclusively for the pass.
    into: *mut u8,
    into_bytes: usize,
    /// Bounce buffer of one chunk for each place, for files opened with `O_DIRECT`.
    bounce: Option<*mut u8>,
    places: [Option<UringRead>; DEPTH],
    idle: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct UringRead {
    /// Chunk to read; `dst` is its offset in the caller's buffer.
    chunk: Entry,
    /// Offset in the file of the first byte to read; `length` is in bytes.
    offset: u64,
    length: u32,
    /// Bytes read so far.
    done: u32,
    /// Memory for `length` bytes.
    address: *mut u8,
}

impl UringPass<'_> {
    /// Starts reads until all places are taken or no chunk is left. Returns the bytes requested.
    fn fill_queue(&mut self, chunks: &mut impl Iterator<Item = Entry>) -> Result<u64> {
        let mut asked_bytes = 0;
        while let Some(&place) = self.idle.last()
            && let Some(chunk) = chunks.next()
        {
            let read = self.plan(chunk, place)?;
            self.push(read, place)?;
            self.idle.pop();
            asked_bytes += u64::from(read.length);
        }
        Ok(asked_bytes)
    }

    fn plan(&self, chunk: Entry, place: usize) -> Result<UringRead> {
        let at = usize::try_from(chunk.dst)?;
        let end = at.checked_add(chunk.length as usize);
        ensure!(end.is_some_and(|end| end <= self.into_bytes), "a short buffer");
        // SAFETY: within the buffer, as was just checked.
        let address = unsafe { self.into.add(at) };
        let Entry { offset, length, .. } = chunk;
        let direct = UringRead { chunk, offset, length, done: 0, address };
        match self.bounce {
            Some(bounce) if !is_aligned(&chunk, address.addr()) => {
                let blocks = whole_blocks(&chunk);
                // SAFETY: there is a chunk of memory for each place.
                let address = unsafe { bounce.add(place * CHUNK_BYTES as usize) };
                let length = (blocks.end - blocks.start) as u32;
                Ok(UringRead { offset: blocks.start, length, address, ..direct })
            }
            _ => Ok(direct),
        }
    }

    /// Queues a read, or the rest of a read that returned fewer bytes.
    fn push(&mut self, read: UringRead, place: usize) -> Result<()> {
        let file = Fd(file(self.files, &read.chunk)?.as_raw_fd());
        // SAFETY: within the memory of the read, as `done` is at most its length.
        let address = unsafe { read.address.add(read.done as usize) };
        let entry = opcode::Read::new(file, address, read.length - read.done)
            .offset(read.offset + u64::from(read.done))
            .build()
            .user_data(place as u64);
        // SAFETY: the buffers and the files are borrowed for longer than the pass lives, and it is
        // not dropped before the read has ended.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.context("the ring has an entry for each place")?;
        self.places[place] = Some(read);
        Ok(())
    }

    /// Submits the queued reads and waits for a completion.
    fn turn(&mut self) -> io::Result<()> {
        const PASSING: [i32; 3] = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
        match self.ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error().is_none_or(|code| !PASSING.contains(&code)) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Handles all completions. Returns the first error among them.
    fn reap(&mut self) -> Result<()> {
        let one = |entry: io_uring::cqueue::Entry| (entry.user_data() as usize, entry.result());
        let ended: Vec<(usize, i32)> = self.ring.completion().map(one).collect();
        let mut first = Ok(());
        for (place, result) in ended {
            let completed = self.complete(place, result);
            first = first.and(completed);
        }
        first
    }

    fn complete(&mut self, place: usize, result: i32) -> Result<()> {
        let read = self.places.get_mut(place).and_then(Option::take);
        let mut read = read.context("a completion of nothing")?;
        self.idle.push(place);
        if !read.advance(result, self.bounce.is_some())? {
            self.push(read, place)?;
            self.idle.pop();
            return Ok(());
        }
        self.unpack(&read);
        Ok(())
    }

    /// Copies a chunk out of its bounce buffer.
    fn unpack(&self, read: &UringRead) {
        let skip = (read.chunk.offset - read.offset) as usize;
        let (to, length) = (read.chunk.dst as usize, read.chunk.length as usize);
        // SAFETY: both were checked by `plan`, and the kernel is done with them. They are the same
        // memory if the chunk was read in place.
        unsafe { ptr::copy(read.address.add(skip), self.into.add(to), length) };
    }
}

impl Drop for UringPass<'_> {
    fn drop(&mut self) {
        if self.idle.len() < DEPTH {
            // The ring failed, and the kernel may still write to memory that is freed next.
            process::abort();
        }
    }
}

impl UringRead {
    /// Adds the result of a completion. Returns whether all bytes of the chunk have been read.
    fn advance(&mut self, result: i32, past_cache: bool) -> Result<bool> {
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result).into());
        }
        let needed = (self.chunk.offset - self.offset) as u32 + self.chunk.length;
        let done = self.done + result.cast_unsigned();
        // A direct read can only continue at a block boundary.
        let partial =
            if past_cache { done / BLOCK_BYTES as u32 * BLOCK_BYTES as u32 } else { done };
        ensure!(done >= needed || partial > self.done, "the file ends within a sample");
        self.done = partial;
        Ok(done >= needed)
    }
}
