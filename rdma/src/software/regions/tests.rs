//! Tests of the region and window table.

use proptest::prelude::*;

use super::*;

const QPN: u32 = 0x01_0201;
const OTHER_QPN: u32 = 0x01_0301;

const DOMAIN: DomainId = DomainId(1);
const OTHER_DOMAIN: DomainId = DomainId(2);

/// Fewer where each step is interpreted.
const REPETITIONS: usize = if cfg!(miri) { 20 } else { 1000 };

const REMOTE: Access = Access::REMOTE_WRITE;

fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::WINDOW_BIND
}

/// Registers `memory`, which outlives the region in each test.
fn register(regions: &Arc<Regions>, memory: &mut [u8], access: Access) -> SoftwareRegion {
    let addr = memory.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the tests drop the region before the memory.
    let key = unsafe { regions.register(DOMAIN, addr, memory.len() as u64, access) };
    SoftwareRegion { regions: regions.clone(), key: key.expect("room in the table") }
}

fn address(memory: &[u8]) -> u64 {
    memory.as_ptr().addr() as u64
}

fn key(region: &SoftwareRegion) -> u32 {
    crate::MemoryRegion::rkey(region)
}

#[test]
fn payload_lands_where_it_may() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 16];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    assert_eq!(view.place_remote(key(&region), addr + 4, b"abcd", QPN), Ok(()));
    assert_eq!(view.place_local(key(&region), addr + 14, b"yz"), Ok(()));
    assert_eq!(view.remote(key(&region), addr + 3, 6, QPN), Ok(&b"\0abcd\0"[..]));
    drop(section);
    drop(region);
    assert_eq!(&memory, b"\0\0\0\0abcd\0\0\0\0\0\0yz");
}

#[test]
fn denied_access_writes_nothing() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 16];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, Access::REMOTE_READ);
    let key = key(&region);
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    for (key, addr, length) in [
        (key, addr, 16u64),
        (key ^ 1, addr, 1),
        (key ^ 1 << GENERATION_BITS, addr, 1),
        (0, addr, 1),
        (u32::MAX, addr, 1),
        (key, addr - 1, 1),
        (key, addr + 16, 1),
        (key, addr, 17),
        (key, addr, u64::MAX),
        (key, u64::MAX, 1),
    ] {
        assert_eq!(view.check_remote(key, addr, length, REMOTE, QPN), Err(Denied));
    }
    assert_eq!(view.place_remote(key, addr, b"x", QPN), Err(Denied));
    assert_eq!(view.place_local(key, addr, b"x"), Err(Denied));
    assert_eq!(view.check_remote(key, addr, 16, Access::REMOTE_READ, QPN), Ok(()));
    drop(section);
    drop(region);
    assert_eq!(memory, [0; 16]);
}

#[test]
fn a_dropped_regions_key_is_not_reused_soon() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 16];
    let addr = address(&memory);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..REPETITIONS {
        let region = register(&regions, &mut memory, everything());
        let key = key(&region);
        assert!(seen.insert(key), "a stale key came back");
        drop(region);
        assert_eq!(
            regions.view(0).in_domain(DOMAIN).check_local(key, addr, 1, Access::NONE),
            Err(Denied)
        );
    }
}

#[test]
fn an_open_window_serves_one_queue_pair() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 64];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let mut window = Window::new(regions.clone(), DOMAIN).unwrap();
    let bind = window.bind(&region, addr + 16, 16, Access::REMOTE_WRITE);
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    let check = |rkey, addr, qpn| view.check_remote(rkey, addr, 8, REMOTE, qpn);
    assert_eq!(check(bind.rkey, addr + 16, QPN), Err(Denied), "not bound yet");
    assert_eq!(view.bind(QPN, &bind), Ok(()));
    assert_eq!(view.bind(QPN, &bind), Err(Denied), "bound already");
    assert_eq!(check(bind.rkey, addr + 16, QPN), Ok(()));
    assert_eq!(check(bind.rkey, addr + 24, QPN), Ok(()));
    assert_eq!(check(bind.rkey, addr + 25, QPN), Err(Denied), "past its end");
    assert_eq!(check(bind.rkey, addr + 15, QPN), Err(Denied), "before its start");
    assert_eq!(check(bind.rkey, addr + 16, OTHER_QPN), Err(Denied), "of another queue pair");
    assert_eq!(
        view.check_remote(bind.rkey, addr + 16, 8, Access::REMOTE_READ, QPN),
        Err(Denied),
        "a right that it does not grant"
    );
    assert_eq!(view.check_local(bind.rkey, addr + 16, 8, Access::NONE), Err(Denied));
    assert_eq!(view.invalidate(OTHER_QPN, bind.rkey), Err(Denied));
    assert_eq!(view.invalidate(QPN, key(&region)), Err(Denied), "an ordinary region");
    assert_eq!(view.invalidate(QPN, bind.rkey), Ok(()));
    assert_eq!(check(bind.rkey, addr + 16, QPN), Err(Denied), "invalidated");
    let again = window.bind(&region, addr, 64, Access::REMOTE_READ);
    assert_ne!(again.rkey, bind.rkey);
    assert_eq!(view.bind(OTHER_QPN, &again), Ok(()));
    assert_eq!(view.bind(QPN, &bind), Err(Denied), "an old bind of a window in use");
}

#[test]
fn a_window_needs_its_region() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 64];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let mut window = Window::new(regions.clone(), DOMAIN).unwrap();
    let bind = window.bind(&region, addr, 64, Access::REMOTE_WRITE);
    assert_eq!(regions.view(0).in_domain(DOMAIN).bind(QPN, &bind), Ok(()));
    drop(region);
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    assert_eq!(view.check_remote(bind.rkey, addr, 1, REMOTE, QPN), Err(Denied));
    assert_eq!(view.invalidate(QPN, bind.rkey), Ok(()));
    let bind = bind_again(&mut window, bind);
    assert_eq!(view.bind(QPN, &bind), Err(Denied), "its region is gone");
}

#[test]
fn a_key_of_another_domain_names_nothing() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 64];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let mut window = Window::new(regions.clone(), DOMAIN).unwrap();
    let section = regions.view(0);
    let (own, other) = (section.in_domain(DOMAIN), section.in_domain(OTHER_DOMAIN));
    assert_eq!(other.check_local(key(&region), addr, 1, Access::NONE), Err(Denied));
    assert_eq!(other.place_remote(key(&region), addr, b"x", QPN), Err(Denied));
    assert_eq!(other.remote(key(&region), addr, 1, QPN), Err(Denied));
    let bind = window.bind(&region, addr, 64, Access::REMOTE_WRITE);
    assert_eq!(other.bind(QPN, &bind), Err(Denied));
    assert_eq!(own.bind(QPN, &bind), Ok(()));
    assert_eq!(other.check_remote(bind.rkey, addr, 1, REMOTE, QPN), Err(Denied));
    assert_eq!(other.invalidate(QPN, bind.rkey), Err(Denied));
    assert_eq!(own.check_remote(bind.rkey, addr, 1, REMOTE, QPN), Ok(()));
}

#[test]
fn indexes_are_reused_oldest_first() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = [0; 1];
    let mut indexes = |count| -> Vec<usize> {
        let one = |_| index_of(key(&register(&regions, &mut memory, Access::NONE)));
        (0..count).map(one).collect()
    };
    let first = indexes(MIN_IDLE);
    assert_eq!(first, (0..MIN_IDLE).collect::<Vec<_>>());
    assert_eq!(indexes(MIN_IDLE), first);
}

/// The generation of the region's index comes round to the very key that the window was bound to.
#[test]
fn a_window_does_not_open_a_later_registration() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 64];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let old_key = key(&region);
    let mut window = Window::new(regions.clone(), DOMAIN).unwrap();
    let bind = window.bind(&region, addr, 64, Access::REMOTE_WRITE);
    assert_eq!(regions.view(0).in_domain(DOMAIN).bind(QPN, &bind), Ok(()));
    drop(region);
    {
        let mut free = regions.free();
        free.indexes.retain(|&index| index as usize == index_of(old_key));
        free.indexes.extend(vec![u32::MAX; MIN_IDLE]);
        free.generations[index_of(old_key)] = (old_key & GENERATION_MASK) - 1;
    }
    let later = register(&regions, &mut memory, everything());
    assert_eq!(key(&later), old_key);
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    assert_eq!(view.check_remote(old_key, addr, 1, REMOTE, QPN), Ok(()));
    assert_eq!(view.check_remote(bind.rkey, addr, 1, REMOTE, QPN), Err(Denied));
}

fn bind_again(window: &mut Window, bind: Bind) -> Bind {
    window.key = next_key(window.key);
    Bind { rkey: window.key, ..bind }
}

#[test]
fn a_window_grants_no_more_than_its_region() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = vec![0; 64];
    let addr = address(&memory);
    let closed = register(&regions, &mut memory, Access::LOCAL_WRITE);
    let read_only = register(&regions, &mut memory, Access::WINDOW_BIND);
    let mut window = Window::new(regions.clone(), DOMAIN).unwrap();
    for (region, addr, length, access) in [
        (&closed, addr, 64, Access::REMOTE_READ),
        (&read_only, addr, 64, Access::REMOTE_WRITE),
        (&read_only, addr, 65, Access::REMOTE_READ),
        (&read_only, addr, 0, Access::REMOTE_READ),
    ] {
        let bind = window.bind(region, addr, length, access);
        assert_eq!(regions.view(0).in_domain(DOMAIN).bind(QPN, &bind), Err(Denied));
    }
    let bind = window.bind(&read_only, addr, 64, Access::REMOTE_READ);
    assert_eq!(regions.view(0).in_domain(DOMAIN).bind(QPN, &bind), Ok(()));
    drop(window);
    let section = regions.view(0);
    let view = section.in_domain(DOMAIN);
    let still_open = view.check_remote(bind.rkey, addr, 1, Access::REMOTE_READ, QPN);
    assert_eq!(still_open, Err(Denied), "the window was dropped");
    assert_eq!(view.bind(QPN, &bind), Err(Denied), "the window was dropped");
}

#[test]
#[cfg_attr(miri, ignore = "a quarter of a million entries take it long")]
fn a_full_table_says_so_and_recovers() {
    let regions = Arc::new(Regions::new(1, Random::seeded(1)));
    let mut memory = [0; 1];
    let mut all: Vec<SoftwareRegion> =
        (0..MAX_ENTRIES).map(|_| register(&regions, &mut memory, Access::NONE)).collect();
    // SAFETY: nothing is registered, since the table is full.
    assert_eq!(unsafe { regions.register(DOMAIN, 0, 1, Access::NONE) }, None);
    assert!(Window::new(regions.clone(), DOMAIN).is_none());
    all.pop();
    all.push(register(&regions, &mut memory, Access::NONE));
}

#[test]
fn dropping_waits_for_sections_of_other_threads() {
    let regions = Arc::new(Regions::new(2, Random::seeded(1)));
    let mut memory = vec![0u8; 64];
    let addr = address(&memory);
    let region = register(&regions, &mut memory, everything());
    let rkey = key(&region);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (regions, stop) = (regions.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let section = regions.view(1);
                let _ = section.in_domain(DOMAIN).place_remote(rkey, addr, &[0xFF; 64], QPN);
            }
        })
    };
    std::thread::yield_now();
    drop(region);
    memory.fill(0);
    for _ in 0..REPETITIONS {
        std::thread::yield_now();
        assert!(memory.iter().all(|&byte| byte == 0), "written after the drop returned");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
}

proptest! {
    #[test]
    fn only_what_lies_within_is_allowed(offset in 0u64..96, length in 0u64..96) {
        let regions = Arc::new(Regions::new(1, Random::seeded(1)));
        let mut memory = vec![0; 64];
        let addr = address(&memory);
        let region = register(&regions, &mut memory, everything());
        let allowed = regions.view(0).in_domain(DOMAIN).check_remote(key(&region), addr + offset, length, REMOTE, QPN);
        prop_assert_eq!(allowed.is_ok(), offset + length <= 64);
    }
}
