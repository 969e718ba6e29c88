//! The shards of a manifest as files, with replicas on two targets.

use std::fs;

use feedrail_tests::process::{Bytes, Daemon, MountedFiles, feedrail, fuse_is_missing};

#[test]
fn a_shard_is_read_from_the_target_that_is_there() {
    if fuse_is_missing() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files = ["a.tar", "b.tar", "c.tar"];
    let contents: Vec<_> = (1..=3).map(|seed| Bytes::new(seed).take(300_001)).collect();
    let serve = |copy: &str| {
        let paths = files.map(|name| folder.path().join(copy).join(name));
        fs::create_dir(folder.path().join(copy)).unwrap();
        paths.iter().zip(&contents).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        Daemon::serving(paths)
    };
    let (one, other) = (serve("one"), serve("other"));
    let url = |daemon: &Daemon| format!("nvmf://{}/{}", daemon.address(), daemon.nqn());
    let manifest = folder.path().join("manifest.json").display().to_string();
    let words = ["manifest", "--name", "set", "--crc", "--output", &manifest];
    feedrail(words).args([url(&one), url(&other)]).run().success();

    let mounted = MountedFiles::from(&manifest, &["--timeout", "5000"]);
    let read = |name: &str| fs::read(mounted.path(name)).unwrap();
    assert!(read("a.tar") == contents[0]);
    assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 3);
    one.kill();
    assert!(read("b.tar") == contents[1]);
    assert!(read("c.tar") == contents[2]);
    mounted.unmount(&[]).success();
    drop(mounted);

    // One that is away when it is mounted is no obstacle.
    let mounted = MountedFiles::from(&manifest, &["--timeout", "2000"]);
    assert!(fs::read(mounted.path("a.tar")).unwrap() == contents[0]);
}
