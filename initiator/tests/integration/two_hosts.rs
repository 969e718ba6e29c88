//! Handles of two hosts of one process: each host numbers its connections itself, so that no call
//! takes those of both.

use feedrail_initiator::{
    Entry, Error, ErrorKind, Grant, Host, Namespace, PlanError, ReadRange, Region, RegionSlice,
    ReplicaPolicy, Shards, Submit, WriteRange,
};

use crate::served::Served;

#[track_caller]
fn assert_is_of_another_host(error: &Error) {
    let is_invalid = matches!(error.kind(), ErrorKind::Invalid(_));
    assert!(is_invalid && error.to_string().contains("another host"), "{error}");
}

#[track_caller]
fn assert_names_the_other<T>(result: Result<T, Error>) {
    let error = result.err().expect("namespaces of two hosts are refused");
    let is_invalid = matches!(error.kind(), ErrorKind::Invalid(_));
    assert!(is_invalid && error.to_string().contains("another Host"), "{error}");
    assert!(error.target().is_some() && error.nsid().is_some(), "{error}");
}

fn slice() -> RegionSlice {
    RegionSlice::from_vec(vec![0; 512], Grant::Persistent)
}

/// Two hosts with a namespace each, of one target: both are the first of their host.
fn two(served: &Served) -> [(Host, Namespace); 2] {
    [(); 2].map(|()| {
        let host = Host::new().unwrap();
        let namespace = served.open(&host);
        (host, namespace)
    })
}

#[test]
fn shards_are_of_one_host() {
    let served = Served::start(4096, false);
    let [(host, one), (other_host, other)] = two(&served);
    assert_names_the_other(Shards::new([one.clone(), other.clone()]));
    assert_names_the_other(Shards::new([one.clone(), one.clone(), other.clone()]));
    for policy in [ReplicaPolicy::First, ReplicaPolicy::default(), ReplicaPolicy::Numa] {
        let [beside, behind] = [vec![one.clone(), other.clone()], vec![other.clone()]];
        assert_names_the_other(Shards::with_replicas(policy, [beside]));
        let shards = [vec![one.clone()], vec![], behind];
        assert_names_the_other(Shards::with_replicas(policy, shards));
    }
    assert_names_the_other(Shards::replicated([vec![one.clone(), other.clone()]]));
    assert_names_the_other(Shards::replicated([vec![one.clone()], vec![other.clone()]]));

    let region = Region::allocate(512, Grant::Persistent).unwrap();
    let entry = Entry { shard: 0, length: 512, offset: 0, dst: 0 };
    let shards = Shards::new([one.clone()]).unwrap();
    for plan in [&[entry][..], &[]] {
        let refused = other_host.submit(&shards, plan, &region, Submit::default());
        let Err(PlanError::Host(error)) = refused else { panic!("another host took the plan") };
        assert_is_of_another_host(&error);
    }
    let ticket = host.submit(&shards, &[entry], &region, Submit::default()).unwrap();
    assert_eq!(ticket.wait(1, None).failed, 0);
    let none = host.submit(&Shards::default(), &[], &region, Submit::default()).unwrap();
    assert!(none.is_done());
}

#[test]
fn ranges_are_of_one_host() {
    let served = Served::start(4096, true);
    let [(host, one), (_other_host, other)] = two(&served);
    let read = |namespace: &Namespace| ReadRange {
        namespace: namespace.clone(),
        offset: 0,
        into: slice(),
    };
    let outcomes = host.read_many([read(&one), read(&other), read(&one)]).wait();
    let [first, second, third] = &outcomes[..] else { panic!("one outcome for each range") };
    assert!(first.result.is_ok() && third.result.is_ok());
    assert_is_of_another_host(second.result.as_ref().unwrap_err());
    let write = WriteRange { namespace: other.clone(), offset: 0, from: slice() };
    assert_is_of_another_host(host.write_many([write]).wait()[0].result.as_ref().unwrap_err());

    let mut ring = host.ring(2);
    ring.read(&other, 0, slice(), 1).unwrap();
    ring.write(&other, 0, slice(), 2).unwrap();
    let mut done = Vec::new();
    while done.len() < 2 {
        ring.wait(1, None, &mut done);
    }
    done.iter().for_each(|done| assert_is_of_another_host(done.result.as_ref().unwrap_err()));
}

#[test]
fn paths_are_of_one_host() {
    let served = Served::start(4096, false);
    let [host, other_host] = [(); 2].map(|()| Host::new().unwrap());
    let [paths, other] =
        [&host, &other_host].map(|it| it.connect_paths([served.at]).wait().unwrap());
    let nsid = feedrail_initiator::Nsid(1);
    let namespace = paths.multipath_namespace(nsid, ReplicaPolicy::default()).wait().unwrap();
    assert_names_the_other(namespace.change_paths(&other).wait());
    let following = other_host.follow_paths(served.at.address, served.at.nqn).wait().unwrap();
    assert_names_the_other::<()>(Err(following.keep_up(std::slice::from_ref(&namespace)).wait()));
    let mut bytes = [0; 512];
    namespace.read_at(0, &mut bytes).unwrap();
    assert!(namespace.change_paths(&paths).wait().unwrap().is_empty());
}

/// The promise of the documentation to hosts that share a namespace. Parts of one block have no
/// such promise.
#[test]
fn whole_blocks_of_two_hosts_are_all_kept() {
    const BLOCKS: u64 = 16;
    let served = Served::start(64 << 10, true);
    let two = two(&served);
    let block_bytes = two[0].1.info().block_bytes;
    for round in 0..20 {
        let writing = two.each_ref().map(|(host, namespace)| {
            let is_first = std::ptr::eq(namespace, &two[0].1);
            let blocks = (0..BLOCKS).filter(|block| block.is_multiple_of(2) == is_first);
            host.write_many(blocks.map(|block| WriteRange {
                namespace: namespace.clone(),
                offset: block * block_bytes,
                from: filled(block_bytes, block + round),
            }))
        });
        for written in writing {
            written.wait().into_iter().for_each(|outcome| outcome.result.unwrap());
        }
        for block in 0..BLOCKS {
            let read = two[0].1.read_to_vec(block * block_bytes, block_bytes as usize);
            assert_eq!(read.wait().unwrap(), filled(block_bytes, block + round).to_vec());
        }
    }
}

fn filled(length: u64, with: u64) -> RegionSlice {
    RegionSlice::from_vec(vec![with as u8; length as usize], Grant::Persistent)
}
