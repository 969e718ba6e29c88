//! The provider of shared memory, its peers that write what they like into the memory that they
//! share, and one that is well-behaved and must be served all the while.

mod memory;
mod peer;
mod victim;
mod witness;

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rdma::{Access, ConnectionManager, Group, MemoryRegion, Op, SendFlags, WakeFor};
use rustix::fs::SealFlags;
use rustix::net::{RecvFlags, SendFlags as SocketSend, Shutdown, SocketType};

use self::memory::{SOURCE_BYTES, VictimArea};
use self::peer::{ACTIVE, HostileLink, HostileWord, MAPPING_BYTES, PASSIVE, RING_BYTES, SEALS};
use self::victim::{LINKS_MAX, ShmVictim};
use self::witness::ShmWitness;
use crate::input::Input;

const OPERATIONS_MAX: usize = 60;
const OPERATION_BYTES: usize = 16;
/// First bytes of every message.
const MAGIC: [u8; 8] = *b"FRshm\0\0\x02";
const REQUEST: u8 = 0;
const ACCEPT: u8 = 1;

/// Runs a sequence of operations of sixteen bytes each.
///
/// Must hold: no byte of the victim is written or told to a peer that no key or receive opens to
/// it; each request completes once, in order, and after the first failure as flushed; the victim
/// comes to rest; the well-behaved peer is served; when hostile peers are gone, all that the victim
/// held for them is free again.
pub fn run(data: &[u8]) {
    thread_local! {
        static WORLD: Cell<Option<Box<ShmWorld>>> = const { Cell::new(None) };
    }
    // One whose execution fails is not used again.
    let mut world = WORLD.take().unwrap_or_else(|| Box::new(ShmWorld::new()));
    world.play(data);
    world.end();
    WORLD.set(Some(world));
}

struct ShmWorld {
    victim: ShmVictim,
    witness: ShmWitness,
    /// The hostile peer's own listener.
    listener: (SocketAddr, OwnedFd),
    peers: Vec<HostilePeer>,
}

/// A connection of a hostile peer, or its attempt at one.
struct HostilePeer {
    socket: Option<OwnedFd>,
    link: Option<HostileLink>,
}

/// The fields of one operation.
struct HostileAct {
    code: u8,
    /// Which of the connections it is about.
    which: usize,
    small: [u8; 2],
    number: u32,
    value: u64,
}

impl ShmWorld {
    fn new() -> Self {
        let mut victim = ShmVictim::new();
        let witness = ShmWitness::new(&mut victim);
        Self { victim, witness, listener: peer::listen(), peers: Vec::new() }
    }

    fn play(&mut self, data: &[u8]) {
        let mut input = Input::new(data);
        for _ in 0..OPERATIONS_MAX {
            if input.is_empty() {
                break;
            }
            let mut fields = Input::new(input.slice(OPERATION_BYTES));
            self.operate(&HostileAct {
                code: fields.u8(),
                which: fields.choice(LINKS_MAX),
                small: fields.array(),
                number: fields.u32(),
                value: fields.u64(),
            });
        }
        self.settle();
        self.witness.exchange(&mut self.victim);
    }

    fn end(&mut self) {
        self.peers.clear();
        self.victim.end();
    }

    /// The victim does all that is ready, and has told no secrets.
    fn settle(&mut self) {
        self.victim.settle();
        self.search();
    }

    fn search(&mut self) {
        for link in self.peers.iter_mut().filter_map(|peer| peer.link.as_mut()) {
            link.search_for_secrets();
        }
    }

    fn operate(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [choice, other], number, value, .. } = *operation;
        match operation.code % 18 {
            0 => self.approach(operation),
            1 => self.entice(choice),
            2 => self.settle(),
            3 => {
                self.victim.poll();
                self.search();
            }
            4 => self.victim.receive(which, number as usize % 80),
            5 => self.push(operation),
            6 | 7 => self.write_record(operation),
            8 => self.be_dutiful(which, choice),
            9 => self.scribble_word(operation),
            10 => self.scribble_ring(operation),
            11 => self.read_all(which, choice),
            12 => self.ring_bell(which, choice, other),
            13 => self.say(operation),
            14 => self.leave(which, choice),
            15 => self.victim.sleep(match choice % 2 {
                0 => WakeFor::Everything,
                _ => WakeFor::Arrivals,
            }),
            16 => self.end_by_victim(which, choice),
            _ => match choice % 8 {
                0 => self.victim.memory.revoke(),
                1 => self.witness.exchange(&mut self.victim),
                2 => self.victim.cm_sleeps(),
                3 => {
                    let addr = memory::without_secrets(value);
                    self.victim.place(which, number % (1 << 20), other % 4 == 0, addr, number);
                }
                _ => {
                    let time = Duration::from_micros(value % (1 << (choice % 32)));
                    self.victim.now = self.victim.now + time;
                }
            },
        }
    }

    /// Connects to the victim's listener, and asks for a connection, rightly or wrongly.
    fn approach(&mut self, operation: &HostileAct) {
        if self.peers.len() == LINKS_MAX {
            return;
        }
        let HostileAct { small: [wrong, depth], number, value, .. } = *operation;
        let Some(socket) = peer::connect(self.victim.address) else { return };
        let (bell, theirs) = peer::bells(SocketType::STREAM);
        let memory = match wrong {
            1 => peer::memfd(MAPPING_BYTES, SEALS - SealFlags::SHRINK),
            2 => peer::memfd(MAPPING_BYTES, SEALS - SealFlags::GROW),
            3 => peer::memfd(MAPPING_BYTES, SealFlags::empty()),
            4 => peer::memfd(number as usize % (2 * MAPPING_BYTES), SEALS),
            5 => peer::memfd(MAPPING_BYTES, SEALS | SealFlags::WRITE),
            _ => peer::memfd(MAPPING_BYTES, SEALS),
        };
        let link = match wrong {
            4 | 5 => None,
            _ => HostileLink::map(memory.as_fd(), ACTIVE, Some(bell)),
        };
        let theirs = match wrong {
            6 => peer::bells(SocketType::DGRAM).1,
            7 => peer::memfd(MAPPING_BYTES, SEALS),
            8 => self.listener.1.try_clone().expect("descriptors are left"),
            _ => theirs,
        };
        let descriptors = match wrong {
            9 => vec![],
            10 => vec![memory],
            11 => vec![theirs, memory],
            12 => vec![memory, peer::memfd(64, SEALS), theirs],
            13 => vec![memory, theirs, peer::memfd(64, SEALS)],
            _ => vec![memory, theirs],
        };
        let mut message = message(REQUEST, [depth % 32, value as u8, 1, 7, 10], number as u16);
        match wrong {
            14 => message[number as usize % 20] ^= value as u8,
            15 => message.truncate(number as usize % 20),
            16 => message.resize(20 + number as usize % 300, 0x77),
            _ => {}
        }
        peer::send(&socket, &message, &descriptors);
        // What the first one may do later.
        self.peers.push(HostilePeer { socket: Some(socket), link });
        if wrong != 17 {
            self.settle();
            self.greet();
        }
    }

    /// Sends what an active end says when it was accepted.
    fn greet(&self) {
        if let Some(HostilePeer { socket: Some(socket), .. }) = self.peers.last() {
            peer::send(socket, &message(3, [0; 5], 0), &[]);
        }
    }

    /// Makes the victim connect, and takes what it offers.
    fn entice(&mut self, wrong: u8) {
        if self.peers.len() == LINKS_MAX || self.victim.links.len() == LINKS_MAX {
            return;
        }
        self.victim.connect(self.listener.0);
        let Some((socket, descriptors)) = peer::accept(&self.listener.1) else { return };
        let mut descriptors = descriptors.into_iter();
        let (Some(memory), bell) = (descriptors.next(), descriptors.next()) else { return };
        let link = HostileLink::map(memory.as_fd(), PASSIVE, bell);
        let answer = match wrong {
            1 => message(2, [0; 5], 28),
            2 => vec![],
            _ => message(ACCEPT, [wrong % 32, 4, 1, 7, 10], 0),
        };
        if !answer.is_empty() {
            peer::send(&socket, &answer, &[]);
        }
        self.peers.push(HostilePeer { socket: Some(socket), link });
        if wrong != 3 {
            self.settle();
        }
    }

    /// The victim posts a send request.
    fn push(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [choice, flags], number, value, .. } = *operation;
        let rkey = number;
        let remote_addr = memory::without_secrets(value);
        let mut flags = match flags % 4 {
            0 => SendFlags::NONE,
            1 => SendFlags::SIGNALED | SendFlags::FENCE,
            _ => SendFlags::SIGNALED,
        };
        let op = match choice % 8 {
            0 => Op::Send,
            1 => Op::SendWithInvalidate { rkey },
            2 => Op::RdmaWrite { remote_addr, rkey },
            3 | 4 => Op::RdmaRead { remote_addr, rkey },
            5 => match self.victim.bind(Access::REMOTE_READ | Access::REMOTE_WRITE) {
                Some(op) => op,
                None => return,
            },
            6 => Op::LocalInvalidate { rkey: self.victim.window_key() },
            _ => {
                flags = flags | SendFlags::INLINE;
                Op::Send
            }
        };
        let length = match choice / 8 % 4 {
            0 => number as usize % 256,
            1 => number as usize % 5000,
            _ => number as usize % (SOURCE_BYTES + 1),
        };
        self.victim.send(which, op, flags, length);
    }

    /// Writes a record that may make sense.
    fn write_record(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [choice, shape], number, value, .. } = *operation;
        let Some(link) = link(&mut self.peers, which) else { return };
        let [area, offset @ ..] = value.to_le_bytes();
        let area = VictimArea::ALL[usize::from(area) % 7];
        let bytes = area.range().len() as u64;
        let offset = u64::from(u16::from_le_bytes([offset[0], offset[1]]));
        let offset = if shape & 1 == 0 { offset % 64 } else { bytes.saturating_sub(offset % 256) };
        let memory = &self.victim.memory;
        let key = match (shape >> 1) % 8 {
            0 => self.victim.window_key(),
            1 => number,
            2 => memory.region(VictimArea::Open).map_or(0, MemoryRegion::rkey),
            _ => memory.region(area).map_or(0, MemoryRegion::rkey),
        };
        let addr = memory.addr(area, 0) + offset;
        let length = u64::from(match (shape >> 4) % 4 {
            0 => number % 64,
            1 => number % 1024,
            2 => number % 33_000,
            _ => number,
        });
        let total = match shape >> 6 {
            0 | 1 => length,
            2 => length + 1,
            _ => value >> 40,
        };
        let (kind, ring) = match choice % 16 {
            kind @ 1..=4 => (kind, 0),
            kind @ 5..=7 => (kind, 1),
            8..=11 => (3, 0),
            12 | 13 => (1, 0),
            14 => (5, 1),
            other => (other, usize::from(shape & 1)),
        };
        let flags = if choice & 0x80 == 0 { 3 } else { u64::from(choice >> 5) & 3 };
        let payload = if kind == 4 || kind > 5 { 0 } else { length };
        let detail = match kind {
            6 => u64::from(number % 4),
            7 => value % 4 * 64,
            _ => addr,
        };
        let first = flags << 40 | u64::from(kind) << 32 | payload;
        link.record(ring, [first, detail, key.into(), total], value as u8);
        if choice & 0x10 == 0 {
            link.publish(ring);
        }
    }

    /// Answers what the victim asks for as an honest peer would.
    fn be_dutiful(&mut self, which: usize, count: u8) {
        let Some(link) = link(&mut self.peers, which) else { return };
        for _ in 0..=count % 8 {
            let Some([first, _, _, total]) = link.take(0) else { break };
            if (first >> 32) & 0xFF == 4 && total <= 1 << 17 {
                let most = 32 << 10;
                let mut rest = total;
                loop {
                    let length = rest.min(most);
                    rest -= length;
                    let last = if rest == 0 { 2 } else { 0 };
                    link.record(1, [last << 40 | 5 << 32 | length, 0, 0, 0], 0x55);
                    if rest == 0 {
                        break;
                    }
                }
                link.publish(1);
            }
        }
    }

    /// Writes one of the words of either end.
    fn scribble_word(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [choice, how], value, .. } = *operation;
        let Some(link) = link(&mut self.peers, which) else { return };
        let (end, ring) = (usize::from(choice & 1), usize::from(choice >> 1 & 1));
        let offset = HostileLink::offset(match choice >> 2 & 7 {
            0 | 4 => HostileWord::Head { writer: end, ring },
            1 | 5 => HostileWord::Tail { writer: end, ring },
            2 => HostileWord::Asleep { end },
            6 => HostileWord::News { end },
            _ => HostileWord::Closed { end },
        });
        link.store(offset, forged(link.load(offset), how, value));
    }

    /// Writes a word of a header that is there already, or anywhere.
    fn scribble_ring(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [choice, how], number, value, .. } = *operation;
        let Some(link) = link(&mut self.peers, which) else { return };
        let (writer, ring) = (usize::from(choice & 1), usize::from(choice >> 1 & 1));
        let position = match choice >> 2 & 3 {
            0 => u64::from(number % 64) * 64,
            1 if writer == link.end() => {
                link.position(ring).saturating_sub(u64::from(number % 8) * 64)
            }
            _ => u64::from(number),
        };
        let word = usize::from(choice >> 4 & 3);
        let offset = HostileLink::in_ring(writer, ring, position & !63) + 8 * word;
        link.store(offset, forged(link.load(offset), how, value));
    }

    fn read_all(&mut self, which: usize, choice: u8) {
        let Some(link) = link(&mut self.peers, which) else { return };
        let ring = usize::from(choice & 1);
        for _ in 0..=choice >> 1 {
            if link.take(ring).is_none() {
                break;
            }
        }
    }

    /// Rings the bell, with more than a bell rings with.
    fn ring_bell(&mut self, which: usize, choice: u8, count: u8) {
        let Some(link) = link(&mut self.peers, which) else { return };
        let Some(bell) = &link.bell else { return };
        let flags = SocketSend::DONTWAIT | SocketSend::NOSIGNAL;
        let bytes = [1; 256];
        match choice % 8 {
            0..=2 => drop(rustix::net::send(bell, &bytes[..=usize::from(count)], flags)),
            3 => drop(rustix::net::send(bell, &bytes[..1], flags | SocketSend::OOB)),
            4 => drop(rustix::net::shutdown(bell, Shutdown::Write)),
            5 => drop(rustix::net::shutdown(bell, Shutdown::Both)),
            6 => drop(rustix::net::recv(bell, &mut [0; 64], RecvFlags::DONTWAIT)),
            _ => link.bell = None,
        }
    }

    /// Sends a message of connection management, or something like one.
    fn say(&mut self, operation: &HostileAct) {
        let HostileAct { which, small: [kind, shape], number, value, .. } = *operation;
        let Some(socket) = self.peers.get(which).and_then(|peer| peer.socket.as_ref()) else {
            return;
        };
        let [a, b, c, d, e, ..] = value.to_le_bytes();
        let mut message = message(kind % 7, [a, b, c, d, e], number as u16);
        match shape % 8 {
            0 => message.truncate(number as usize % 21),
            1 => message.resize(20 + number as usize % 300, 0x66),
            2 => message[number as usize % 20] ^= value as u8,
            _ => {}
        }
        let descriptors = match shape >> 3 & 3 {
            0 => vec![peer::bells(SocketType::STREAM).0],
            _ => vec![],
        };
        peer::send(socket, &message, &descriptors);
    }

    fn leave(&mut self, which: usize, choice: u8) {
        let Some(peer) = self.peers.get_mut(which) else { return };
        match choice % 3 {
            0 => peer.socket = None,
            1 => peer.link = None,
            _ => drop(self.peers.remove(which)),
        }
    }

    fn end_by_victim(&mut self, which: usize, choice: u8) {
        let Some(link) = self.victim.links.get(which) else { return };
        match choice % 2 {
            0 => self.victim.group.fail(link.qp),
            _ => self.victim.cm.disconnect(self.victim.now, link.conn),
        }
    }
}

fn link(peers: &mut [HostilePeer], which: usize) -> Option<&mut HostileLink> {
    peers.get_mut(which)?.link.as_mut()
}

/// Another value for a word.
fn forged(present: u64, how: u8, value: u64) -> u64 {
    match how % 6 {
        0 => value,
        1 => present.wrapping_add(value % 5 * 64),
        2 => present.wrapping_sub(value % 5 * 64),
        3 => present ^ 1 << (value % 64),
        4 => RING_BYTES[(value % 2) as usize].wrapping_add(present).wrapping_sub(value % 3 * 64),
        _ => value % 4,
    }
}

/// A message with what its fixed part says, and no private data.
fn message(kind: u8, [resources, depth, retry, rnr, exponent]: [u8; 5], number: u16) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..14].copy_from_slice(&[kind, resources, depth, retry, rnr, exponent]);
    bytes[14..16].copy_from_slice(&number.to_le_bytes());
    bytes
}
