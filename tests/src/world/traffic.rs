//! One host at work on one target: everything that a host may ask of a namespace, each answer held
//! against its [`History`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{
    CommandData, Controller, Error, ErrorKind, Grant, Namespace, Nsid, Pending, RangeCompletion,
    RegionSlice, ReplicaPolicy, Ring, SubsystemAddress, SubsystemPaths,
};
use nvme_proto::Status;
use nvme_proto::fabrics::{PropertySet, PropertySize};
use nvme_proto::registers::Property;
use rdma::Time;

use super::history::{FlushId, History, ReadId, WriteEnd, WriteId};
use super::row_batch::RowBatch;
use super::{HostNode, Random, Totals, Trace};

/// The bytes around the memory of a range.
const GUARD: [u8; 64] = [0x6D; 64];
/// Fill of the destinations of reads before the read.
const UNTOUCHED: u8 = 0xA5;
/// Fill of memory that came back from a read that failed.
const RETURNED: u8 = 0x5C;
/// Memory that came back from failed reads and is watched.
const WATCHED: usize = 8;
/// Percentage of requests of kind 86, one in a hundred, that disable the controller.
const DISABLE_PERCENT: u64 = 25;
/// Percentage of requests of kind 87, one in a hundred, that change the paths instead.
const CHANGE_PERCENT: u64 = 50;
/// Time between attempts to connect.
const PAUSE: Duration = Duration::from_millis(150);

/// The histories of a target's two namespaces, a writable and a read-only one, as far as traffic
/// knows them.
pub(super) type Histories = [History; 2];
const WRITABLE: usize = 0;
const PROTECTED: usize = 1;

/// How traffic is to be.
#[derive(Clone, Debug)]
pub(super) struct TrafficOptions {
    /// Bytes of the writable namespace that only this traffic writes.
    pub area: Range<usize>,
    /// Bytes of both namespaces.
    pub size: usize,
    /// Number of requests in all.
    pub requests: u32,
    /// The most requests in flight.
    pub depth: usize,
    /// How memory is open to targets.
    pub grant: Grant,
    /// How each range chooses one of two paths; with `None` there is one.
    pub policy: Option<ReplicaPolicy>,
    /// Seed of the sequence of requests.
    pub seed: u64,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connected, Error>>>>;

/// The objects of a connection.
struct Connected {
    controllers: Vec<Controller>,
    namespaces: [Namespace; 2],
    /// Paths of namespaces that have several.
    paths: Option<SubsystemPaths>,
    changing: Option<Changing>,
}

/// A change of the paths of both namespaces.
type Changing = Pin<Box<dyn Future<Output = Result<SubsystemPaths, Error>>>>;

enum Link {
    Down { until: Time },
    Connecting(Connecting),
    Up(Connected),
}

/// Traffic, and the requests that it waits for.
pub(super) struct Traffic {
    options: TrafficOptions,
    random: Random,
    link: Link,
    /// Ring of the current host; made again with it.
    ring: Option<Ring>,
    ranges: BTreeMap<u64, InFlight>,
    commands: Vec<Command>,
    batches: Vec<RowBatch>,
    done: Vec<RangeCompletion>,
    next_token: u64,
    finished: u32,
    /// Requests to be made before anything random.
    errands: VecDeque<Errand>,
    /// The paths are to be others.
    change_due: bool,
    watched: VecDeque<RegionSlice>,
    totals: Totals,
    /// Whether each request and its end is printed.
    verbose: Option<String>,
}

/// A range in flight.
struct InFlight {
    place: Range<usize>,
    what: What,
    guards: [RegionSlice; 2],
}

enum What {
    Read(usize, ReadId),
    Write(WriteId, Vec<u8>, WriteEnd),
    /// Write to the namespace that is protected.
    Forbidden,
}

/// A request that is not random.
enum Errand {
    Read(Range<usize>),
    Flush,
}

/// A command without memory of ours.
struct Command {
    answer: Pin<Box<dyn Future<Output = Result<(), Error>>>>,
    what: Order,
}

enum Order {
    Flush(FlushId),
    Zero(Range<usize>, WriteId),
    /// Compare with these bytes of the writable namespace.
    Compare {
        at: usize,
        bytes: Vec<u8>,
        read: ReadId,
    },
    Disable,
}

impl Traffic {
    /// Traffic that connects with its first turn. With a name it prints its requests.
    pub(super) fn new(options: TrafficOptions, verbose: Option<String>) -> Self {
        Self {
            random: Random::new(options.seed),
            options,
            link: Link::Down { until: Time::ZERO },
            ring: None,
            ranges: BTreeMap::new(),
            commands: Vec::new(),
            batches: Vec::new(),
            done: Vec::new(),
            next_token: 0,
            finished: 0,
            errands: VecDeque::new(),
            change_due: false,
            watched: VecDeque::new(),
            totals: Totals::default(),
            verbose,
        }
    }

    /// Requests that have ended.
    pub(super) fn finished(&self) -> u32 {
        self.finished
    }

    /// Whether all requests have ended.
    pub(super) fn is_over(&self) -> bool {
        self.finished >= self.options.requests && self.in_flight() == 0
    }

    /// Counts of requests, faults and recoveries by name.
    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Gives its handles back, whatever is in flight, and connects again.
    pub(super) fn reset(&mut self, now: Time) {
        self.print_event(now, || "reset".into());
        self.link = Link::Down { until: now + PAUSE };
    }

    /// Drops everything at the end of the host process: its requests will never be answered.
    pub(super) fn forget(&mut self, histories: &mut Histories) {
        self.link = Link::Down { until: Time::ZERO };
        self.ring = None;
        for (_, InFlight { what, .. }) in std::mem::take(&mut self.ranges) {
            self.finished += 1;
            if let What::Read(namespace, read) = what {
                histories[namespace].abandon_read(read);
            }
        }
        for Command { what, .. } in std::mem::take(&mut self.commands) {
            self.finished += 1;
            if let Order::Compare { read, .. } = what {
                histories[WRITABLE].abandon_read(read);
            }
        }
        for batch in std::mem::take(&mut self.batches) {
            self.finished += 1;
            let history = &mut histories[batch.namespace()];
            batch.forget(history);
        }
        self.done.clear();
        self.watched.clear();
    }

    /// Takes the requests that have ended, checks them, and starts the next ones.
    pub(super) fn turn(
        &mut self,
        now: Time,
        host: &HostNode,
        paths: [SubsystemAddress; 2],
        histories: &mut Histories,
        trace: &mut Trace,
    ) {
        self.take_ranges(now, histories, trace);
        self.take_commands(now, histories, trace);
        self.take_batches(now, histories, trace);
        self.connect(now, host, paths);
        self.change_paths(now, paths);
        self.ring.get_or_insert_with(|| host.host.ring(self.options.depth));
        while self.finished + (self.in_flight() as u32) < self.options.requests
            && self.in_flight() < self.options.depth
            && matches!(self.link, Link::Up(_))
            && self.start(now, host, histories)
        {}
    }

    /// When it wants its next turn though nothing happens.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.link {
            Link::Down { until } => Some(until),
            Link::Connecting(_) | Link::Up(_) => None,
        }
    }

    /// Reads the writable namespace from end to end in the next turns.
    pub(super) fn read_all(&mut self) {
        let size = self.options.size;
        let piece = size.div_ceil(self.options.depth);
        let pieces = (0..size).step_by(piece).map(|start| start..(start + piece).min(size));
        self.errands.extend(pieces.map(Errand::Read));
        self.options.requests = self.finished + self.errands.len() as u32;
    }

    /// Flushes in the next turns.
    pub(super) fn flush_all(&mut self) {
        self.errands.push_back(Errand::Flush);
        self.options.requests = self.finished + 1;
    }

    /// Whether it is connected.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Asserts that no memory changed after it had been handed back.
    pub(super) fn check_returned_memory(&self) {
        for slice in &self.watched {
            assert!(
                slice.bytes().iter().all(|&byte| byte == RETURNED),
                "written after it was handed back"
            );
        }
    }

    fn in_flight(&self) -> usize {
        self.ranges.len() + self.commands.len() + self.batches.len()
    }

    fn connect(&mut self, now: Time, host: &HostNode, paths: [SubsystemAddress; 2]) {
        // Requests of the last connection would count for this one.
        let in_flight = self.in_flight();
        match &mut self.link {
            Link::Up(_) => {}
            Link::Down { until } if *until > now || in_flight > 0 => {}
            Link::Down { .. } => {
                self.link = Link::Connecting(match self.options.policy {
                    None => Box::pin(connect_to(host.host.connect(paths[0]))),
                    Some(policy) => Box::pin(connect_over(host.host.connect_paths(paths), policy)),
                });
            }
            Link::Connecting(connecting) => {
                let mut context = Context::from_waker(Waker::noop());
                let Poll::Ready(result) = connecting.as_mut().poll(&mut context) else { return };
                match result {
                    Ok(connected) => {
                        assert!(connected.namespaces[PROTECTED].info().write_protected);
                        self.totals.add("work: connects", 1);
                        self.print_event(now, || "connected".into());
                        self.link = Link::Up(connected);
                    }
                    Err(error) => {
                        refuse_violations(&error);
                        self.totals.add("recovery: connects that failed", 1);
                        self.print_event(now, || format!("cannot connect: {error}"));
                        self.link = Link::Down { until: now + PAUSE };
                    }
                }
            }
        }
    }

    /// Changes the paths of the namespaces to some of all when that is due, and takes the end of an
    /// earlier change.
    fn change_paths(&mut self, now: Time, all: [SubsystemAddress; 2]) {
        let Link::Up(connected) = &mut self.link else { return };
        let Some(paths) = &connected.paths else { return };
        let Some(changing) = &mut connected.changing else {
            if std::mem::take(&mut self.change_due) {
                let [one, other] = all;
                let targets = match self.random.within(0..4) {
                    0 => vec![one],
                    1 => vec![other],
                    2 => vec![one, other],
                    _ => vec![other, one],
                };
                let (paths, namespaces) = (paths.clone(), connected.namespaces.clone());
                connected.changing = Some(Box::pin(change_to(paths, targets, namespaces)));
                self.print_event(now, || "the paths are to be others".into());
            }
            return;
        };
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(result) = changing.as_mut().poll(&mut context) else { return };
        connected.changing = None;
        match result {
            Ok(paths) => {
                connected.controllers = paths.controllers().to_vec();
                connected.paths = Some(paths);
                self.totals.add("work: changes of paths", 1);
                self.print_event(now, || "the paths are others".into());
            }
            Err(error) => {
                refuse_violations(&error);
                self.totals.add("recovery: changes of paths that failed", 1);
                self.print_event(now, || format!("the paths cannot be others: {error}"));
            }
        }
    }

    /// Starts a request; false if none may start.
    fn start(&mut self, now: Time, host: &HostNode, histories: &mut Histories) -> bool {
        match self.errands.pop_front() {
            Some(Errand::Read(place)) => self.read(now, WRITABLE, place, histories),
            Some(Errand::Flush) => self.flush(now, histories),
            None => return self.start_random(now, host, histories),
        }
        true
    }

    fn start_random(&mut self, now: Time, host: &HostNode, histories: &mut Histories) -> bool {
        let kind = self.random.within(0..100);
        match kind {
            0..6 => self.read_rows(now, host, histories),
            6..40 => {
                let place = self.anywhere();
                self.read(now, WRITABLE, place, histories);
            }
            40..43 => {
                let place = self.anywhere();
                self.read(now, PROTECTED, place, histories);
            }
            43..45 => {
                let place = self.anywhere();
                self.compare(now, place, histories);
            }
            45..48 => {
                let place = self.anywhere();
                self.write_forbidden(now, place);
            }
            48..86 => {
                let Some(place) = self.free_place(1) else { return false };
                let end = if kind < 78 { WriteEnd::Volatile } else { WriteEnd::Durable };
                self.write(now, place, end, histories);
            }
            86 if self.random.percent(DISABLE_PERCENT) => self.disable(now),
            87 if self.random.percent(CHANGE_PERCENT) => self.change_due = true,
            86..92 => {
                let Some(place) = self.free_place(self.block_bytes()) else { return false };
                self.zero(now, place, kind < 89, histories);
            }
            _ => self.flush(now, histories),
        }
        true
    }

    fn block_bytes(&self) -> usize {
        self.namespace(WRITABLE).info().block_bytes as usize
    }

    fn namespace(&self, which: usize) -> &Namespace {
        match &self.link {
            Link::Up(connected) => &connected.namespaces[which],
            Link::Down { .. } | Link::Connecting(_) => unreachable!("only when connected"),
        }
    }

    /// Mostly short, some long, some aligned.
    fn within(&mut self, area: Range<usize>) -> Range<usize> {
        let size = (area.end - area.start) as u64;
        let longest = if self.random.percent(85) { 4_000 } else { 48_000 };
        let mut length = self.random.within(1..longest + 1).min(size) as usize;
        let mut start = area.start + self.random.within(0..size - length as u64 + 1) as usize;
        if self.random.percent(40) {
            start -= (start - area.start) % 512;
            length = length.next_multiple_of(512).min(area.end - start);
        }
        start..start + length
    }

    fn anywhere(&mut self) -> Range<usize> {
        self.within(0..self.options.size)
    }

    /// A range of whole units in the own area that overlaps no write in flight.
    fn free_place(&mut self, unit: usize) -> Option<Range<usize>> {
        for _ in 0..32 {
            let place = self.within(self.options.area.clone());
            let start = place.start.next_multiple_of(unit);
            let end = place.end / unit * unit;
            if start < end && !self.is_being_written(&(start..end)) {
                return Some(start..end);
            }
        }
        None
    }

    fn is_being_written(&self, place: &Range<usize>) -> bool {
        let overlaps = |other: &Range<usize>| place.start < other.end && other.start < place.end;
        let ranges = self.ranges.values();
        let commands = self.commands.iter();
        ranges
            .filter(|range| matches!(range.what, What::Write(..)))
            .map(|range| &range.place)
            .chain(commands.filter_map(|command| match &command.what {
                Order::Zero(place, _) => Some(place),
                Order::Flush(_) | Order::Compare { .. } | Order::Disable => None,
            }))
            .any(overlaps)
    }

    fn read(&mut self, now: Time, which: usize, place: Range<usize>, histories: &mut Histories) {
        self.print_event(now, || format!("read {place:?} of namespace {}", which + 1));
        let read = histories[which].begin_read();
        let (slice, guards) = framed(vec![UNTOUCHED; place.len()], self.options.grant);
        let namespace = self.namespace(which).clone();
        let token =
            self.insert(InFlight { place: place.clone(), what: What::Read(which, read), guards });
        let ring = self.ring.as_mut().expect("made with the first turn");
        ring.read(&namespace, place.start as u64, slice, token).expect("the ring has room");
    }

    fn read_rows(&mut self, now: Time, host: &HostNode, histories: &mut Histories) {
        let which = if self.random.percent(85) { WRITABLE } else { PROTECTED };
        let count = self.random.within(1..9);
        let places: Vec<_> = (0..count).map(|_| self.anywhere()).collect();
        self.print_event(now, || format!("rows {places:?} of namespace {}", which + 1));
        let namespace = (which, self.namespace(which));
        let (grant, history) = (self.options.grant, &mut histories[which]);
        match RowBatch::begin(&host.host, namespace, places, grant, history) {
            Ok(batch) => self.batches.push(batch),
            Err(error) => {
                refuse_violations(&error);
                self.finished += 1;
                self.failed(now, &error);
            }
        }
    }

    fn take_batches(&mut self, now: Time, histories: &mut Histories, trace: &mut Trace) {
        for batch in self.batches.extract_if(.., |batch| batch.is_done()).collect::<Vec<_>>() {
            self.finished += 1;
            trace.note(now.as_nanos());
            let history = &mut histories[batch.namespace()];
            let (read, errors) = batch.end(history);
            self.print_event(now, || format!("{} rows ended well", read.len()));
            self.totals.add("work: rows", read.len() as u64);
            read.iter().for_each(|bytes| trace.note_bytes(bytes));
            for error in errors {
                refuse_violations(&error);
                self.failed(now, &error);
            }
        }
    }

    fn write(&mut self, now: Time, place: Range<usize>, end: WriteEnd, histories: &mut Histories) {
        self.print_event(now, || format!("write {place:?}, {end:?}"));
        let mut bytes = vec![0; place.len()];
        self.random.fill(&mut bytes);
        let write = histories[WRITABLE].begin_write(place.start, bytes.clone());
        let (slice, guards) = framed(bytes.clone(), self.options.grant);
        let namespace = self.namespace(WRITABLE).clone();
        let what = What::Write(write, bytes, end);
        let token = self.insert(InFlight { place: place.clone(), what, guards });
        let (ring, offset) =
            (self.ring.as_mut().expect("made with the first turn"), place.start as u64);
        let full = match end {
            WriteEnd::Durable => ring.write_durable(&namespace, offset, slice, token),
            _ => ring.write(&namespace, offset, slice, token),
        };
        full.expect("the ring has room");
    }

    fn write_forbidden(&mut self, now: Time, place: Range<usize>) {
        self.print_event(now, || format!("write {place:?} of the protected namespace"));
        let (slice, guards) = framed(vec![0xEE; place.len()], self.options.grant);
        let namespace = self.namespace(PROTECTED).clone();
        let what = What::Forbidden;
        let token = self.insert(InFlight { place: place.clone(), what, guards });
        let ring = self.ring.as_mut().expect("made with the first turn");
        ring.write(&namespace, place.start as u64, slice, token).expect("the ring has room");
    }

    fn zero(
        &mut self,
        now: Time,
        place: Range<usize>,
        deallocate: bool,
        histories: &mut Histories,
    ) {
        self.print_event(now, || format!("zero {place:?}, deallocate: {deallocate}"));
        let write = histories[WRITABLE].begin_write(place.start, vec![0; place.len()]);
        let (offset, length) = (place.start as u64, place.len() as u64);
        let namespace = self.namespace(WRITABLE);
        let answer = if deallocate {
            namespace.deallocate(&[(offset, length)])
        } else {
            namespace.write_zeroes(offset, length)
        };
        self.commands.push(Command { answer: Box::pin(answer), what: Order::Zero(place, write) });
    }

    fn flush(&mut self, now: Time, histories: &mut Histories) {
        self.print_event(now, || "flush".into());
        let flush = histories[WRITABLE].begin_flush();
        let answer = self.namespace(WRITABLE).flush();
        self.commands.push(Command { answer: Box::pin(answer), what: Order::Flush(flush) });
    }

    /// Compares whole blocks with the bytes last written there, or with others.
    fn compare(&mut self, now: Time, place: Range<usize>, histories: &mut Histories) {
        let block = self.block_bytes();
        let at = place.start / block * block;
        let end = place.end.next_multiple_of(block);
        let history = &mut histories[WRITABLE];
        let mut bytes = history.latest(at, end);
        if self.random.percent(30) {
            let wrong = self.random.within(0..bytes.len() as u64) as usize;
            bytes[wrong] ^= 1;
        }
        self.print_event(now, || format!("compare {at}..{end}"));
        let read = history.begin_read();
        let answer = Box::pin(self.namespace(WRITABLE).compare(at as u64, &bytes));
        self.commands.push(Command { answer, what: Order::Compare { at, bytes, read } });
    }

    /// Resets the controller under everything that is in flight.
    fn disable(&mut self, now: Time) {
        self.print_event(now, || "disable the controller".into());
        let Link::Up(Connected { controllers, .. }) = &self.link else {
            unreachable!("only when connected")
        };
        let which = self.random.within(0..controllers.len() as u64) as usize;
        let (property, size) = (Property::CC, PropertySize::FourBytes);
        let sqe = PropertySet { property, size, value: 0 }.to_sqe();
        let answer = controllers[which].admin_command(sqe, CommandData::None);
        let answer = Box::pin(async { answer.await.map(drop) });
        self.commands.push(Command { answer, what: Order::Disable });
    }

    fn insert(&mut self, range: InFlight) -> u64 {
        self.next_token += 1;
        self.ranges.insert(self.next_token, range);
        self.next_token
    }

    fn take_ranges(&mut self, now: Time, histories: &mut Histories, trace: &mut Trace) {
        let mut done = std::mem::take(&mut self.done);
        if let Some(ring) = &mut self.ring {
            ring.reap(&mut done);
        }
        for completion in done.drain(..) {
            trace.note(now.as_nanos());
            trace.note(completion.token);
            self.take_range(now, completion, histories, trace);
        }
        self.done = done;
    }

    fn take_range(
        &mut self,
        now: Time,
        completion: RangeCompletion,
        histories: &mut Histories,
        trace: &mut Trace,
    ) {
        let RangeCompletion { token, slice, result } = completion;
        let range = self.ranges.remove(&token).expect("a range ends once");
        self.finished += 1;
        let InFlight { place, what, guards } = range;
        self.print_event(now, || format!("{place:?} ended: {}", outcome(&result)));
        assert!(
            guards.iter().all(|guard| *guard.bytes() == GUARD),
            "memory around {place:?} changed"
        );
        let result = result.inspect_err(refuse_violations);
        trace.note(u64::from(result.is_ok()));
        match (what, &result) {
            (What::Read(which, read), Ok(())) => {
                self.totals.add("work: reads", 1);
                trace.note_bytes(&slice.bytes());
                if let Err(wrong) = histories[which].end_read(read, place.start, &slice.bytes()) {
                    panic!("a read of namespace {}, {place:?}: {wrong}", which + 1);
                }
            }
            (What::Read(which, read), Err(_)) => {
                histories[which].abandon_read(read);
                self.watch(slice);
            }
            (What::Write(write, bytes, end), result) => {
                assert!(*slice.bytes() == *bytes, "a write changed its source");
                let end = if result.is_ok() { end } else { WriteEnd::Unknown };
                histories[WRITABLE].end_write(write, place.start, place.len(), end);
                let what = match end {
                    WriteEnd::Durable => "work: durable writes",
                    WriteEnd::Volatile => "work: writes",
                    WriteEnd::Unknown => "work: writes that failed",
                };
                self.totals.add(what, 1);
            }
            (What::Forbidden, result) => {
                assert!(result.is_err(), "a protected namespace was written");
                self.totals.add("work: writes to a protected namespace", 1);
            }
        }
        if let Err(error) = result {
            self.failed(now, &error);
        }
    }

    fn take_commands(&mut self, now: Time, histories: &mut Histories, trace: &mut Trace) {
        let mut context = Context::from_waker(Waker::noop());
        for mut command in std::mem::take(&mut self.commands) {
            let Poll::Ready(result) = command.answer.as_mut().poll(&mut context) else {
                self.commands.push(command);
                continue;
            };
            self.finished += 1;
            trace.note(now.as_nanos());
            trace.note(u64::from(result.is_ok()));
            let result = result.inspect_err(refuse_violations);
            let history = &mut histories[WRITABLE];
            self.print_event(now, || format!("command ended: {}", outcome(&result)));
            let well = result.is_ok();
            match command.what {
                Order::Flush(flush) => {
                    if well {
                        history.end_flush(flush);
                    }
                    self.totals.add("work: flushes", u64::from(well));
                }
                Order::Zero(place, write) => {
                    let end = if well { WriteEnd::Volatile } else { WriteEnd::Unknown };
                    history.end_write(write, place.start, place.len(), end);
                    self.totals.add("work: write zeroes and deallocate", u64::from(well));
                }
                Order::Compare { at, bytes, read } => {
                    let differs = result.as_ref().err().and_then(Error::status);
                    let differs = differs.is_some_and(|status| status.is(Status::COMPARE_FAILURE));
                    let judged = match (well, differs) {
                        (true, _) => history.end_read(read, at, &bytes),
                        (false, true) => history.end_difference(read, at, &bytes),
                        (false, false) => {
                            history.abandon_read(read);
                            Ok(())
                        }
                    };
                    if let Err(wrong) = judged {
                        panic!("a comparison at {at}: {wrong}");
                    }
                    self.totals.add("work: comparisons that agreed", u64::from(well));
                    self.totals.add("work: comparisons that differed", u64::from(differs));
                }
                Order::Disable => {
                    self.totals.add("fault: controllers disabled by their host", u64::from(well));
                }
            }
            if let Err(error) = result {
                self.failed(now, &error);
            }
        }
    }

    /// Handles a failed request. A target that was given up has to be connected to again.
    fn failed(&mut self, now: Time, error: &Error) {
        self.totals.add("work: requests that failed", 1);
        if self.is_up() && matches!(error.kind(), ErrorKind::Lost { .. }) {
            self.link = Link::Down { until: now + PAUSE };
        }
    }

    /// Keeps memory for a while, to see whether it changes.
    fn watch(&mut self, mut slice: RegionSlice) {
        slice.fill(RETURNED);
        self.watched.push_back(slice);
        if self.watched.len() > WATCHED {
            self.check_returned_memory();
            self.watched.pop_front();
        }
    }

    fn print_event(&self, now: Time, what: impl FnOnce() -> String) {
        if let Some(name) = &self.verbose {
            super::print_event(now, name, &what());
        }
    }
}

async fn connect_to(connecting: Pending<Result<Controller, Error>>) -> Result<Connected, Error> {
    let controller = connecting.await?;
    let first = controller.namespace(Nsid(1)).await?;
    let namespaces = [first, controller.namespace(Nsid(2)).await?];
    Ok(Connected { controllers: vec![controller], namespaces, paths: None, changing: None })
}

async fn connect_over(
    connecting: Pending<Result<SubsystemPaths, Error>>,
    policy: ReplicaPolicy,
) -> Result<Connected, Error> {
    let paths = connecting.await?;
    let first = paths.multipath_namespace(Nsid(1), policy).await?;
    let namespaces = [first, paths.multipath_namespace(Nsid(2), policy).await?];
    let controllers = paths.controllers().to_vec();
    Ok(Connected { controllers, namespaces, paths: Some(paths), changing: None })
}

async fn change_to(
    paths: SubsystemPaths,
    targets: Vec<SubsystemAddress>,
    namespaces: [Namespace; 2],
) -> Result<SubsystemPaths, Error> {
    let paths = paths.changed_to(targets).await?;
    for namespace in &namespaces {
        namespace.change_paths(&paths).await?.iter().for_each(refuse_violations);
    }
    Ok(paths)
}

/// Memory with guards around it, in one region.
fn framed(bytes: Vec<u8>, grant: Grant) -> (RegionSlice, [RegionSlice; 2]) {
    let length = bytes.len();
    let mut head = RegionSlice::from_vec([&GUARD[..], &bytes, &GUARD].concat(), grant);
    let mut slice = head.split_off(GUARD.len());
    let tail = slice.split_off(length);
    (slice, [head, tail])
}

fn outcome(result: &Result<(), Error>) -> String {
    result.as_ref().err().map_or_else(|| "well".into(), Error::to_string)
}

/// Errors that no fault of networks, disks and processes explains.
fn refuse_violations(error: &Error) {
    let explained = !matches!(
        error.kind(),
        ErrorKind::Malformed(_)
            | ErrorKind::Protocol(_)
            | ErrorKind::Changed(_)
            | ErrorKind::Invalid(_)
            | ErrorKind::NoNamespace(_)
            | ErrorKind::OutOfRange { .. }
            | ErrorKind::Unaligned { .. }
    );
    assert!(explained, "{error}");
}
