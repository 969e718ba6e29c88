//! URLs of targets, subsystems and namespaces.

use std::net::IpAddr;

use nvme_proto::{InvalidNqn, Nsid};
use proptest::prelude::*;

use super::*;
use crate::name::InvalidName;

fn target(url: &str) -> Result<TargetUrl, Error> {
    url.parse()
}

fn source(url: &str) -> Result<SourceUrl, Error> {
    url.parse()
}

#[test]
fn targets_are_hosts_and_ports() {
    for (url, host, port) in [
        ("nvmf://192.0.2.1", "192.0.2.1", 4420),
        ("nvmf://192.0.2.1:4420", "192.0.2.1", 4420),
        ("nvmf://192.0.2.1:65535/", "192.0.2.1", 65535),
        ("nvmf://[2001:DB8::1]", "2001:db8::1", 4420),
        ("nvmf://[2001:db8::1]:1", "2001:db8::1", 1),
        ("nvmf://[::ffff:192.0.2.1]:2", "::ffff:192.0.2.1", 2),
    ] {
        let address: IpAddr = host.parse().expect("an address");
        assert_eq!(target(url), Ok(TargetUrl { host: UrlHost::Address(address), port }), "{url}");
    }
    for (url, host) in [
        ("nvmf://Storage-1.example", "storage-1.example"),
        ("nvmf://localhost:4420", "localhost"),
        ("nvmf://4th_floor", "4th_floor"),
    ] {
        let Ok(TargetUrl { host: UrlHost::Name(name), port: 4420 }) = target(url) else {
            panic!("{url} has a name")
        };
        assert_eq!(name.as_str(), host);
    }
}

#[test]
fn other_targets_are_refused() {
    let no_host = |host: &str| Err(Error::Host(host.to_owned()));
    let no_port = |port: &str| Err(Error::Port(port.to_owned()));
    assert_eq!(target("192.0.2.1"), Err(Error::Scheme));
    assert_eq!(target("nvme://192.0.2.1"), Err(Error::Scheme));
    assert_eq!(target("nvmf://"), no_host(""));
    assert_eq!(target("nvmf://256.1.1.1"), no_host("256.1.1.1"));
    assert_eq!(target("nvmf://2001:db8::1"), no_host("2001:db8::1"));
    assert_eq!(target("nvmf://[2001:db8::1"), no_host("[2001:db8::1"));
    assert_eq!(target("nvmf://[2001:db8::1]4420"), no_host("[2001:db8::1]4420"));
    assert_eq!(target("nvmf://[fe80::1%25eth0]"), no_host("[fe80::1%25eth0]"));
    assert_eq!(target("nvmf://[192.0.2.1]"), no_host("[192.0.2.1]"));
    assert_eq!(target("nvmf://a..b"), no_host("a..b"));
    assert_eq!(target("nvmf://-a"), no_host("-a"));
    assert_eq!(target("nvmf://a b"), no_host("a b"));
    assert_eq!(target("nvmf://größe"), no_host("größe"));
    let long = ["a".repeat(63).as_str(); 4].join(".");
    assert_eq!(target(&format!("nvmf://{long}")), no_host(&long));
    let label = "a".repeat(64);
    assert_eq!(target(&format!("nvmf://{label}")), no_host(&label));
    for port in ["0", "65536", "+1", "x"] {
        assert_eq!(target(&format!("nvmf://a:{port}")), no_port(port));
        assert_eq!(target(&format!("nvmf://[::1]:{port}")), no_port(port));
    }
    assert_eq!(target("nvmf://a:"), no_port(""));
    assert_eq!(target("nvmf://[::1]:"), no_port(""));
    assert_eq!(target("nvmf://u@a"), Err(Error::Meaningless('@')));
    assert_eq!(target("nvmf://a?b"), Err(Error::Meaningless('?')));
    assert_eq!(target("nvmf://a#b"), Err(Error::Meaningless('#')));
    assert_eq!(target("nvmf://a/b"), Err(Error::Path("/b".to_owned())));
}

#[test]
fn sources_are_subsystems_and_namespaces() {
    let nqn = "nqn.2026-01.org.example:set:train";
    let name = |text: &str| Some(NamespaceChoice::Name(text.parse().expect("a name")));
    for (path, namespace) in [
        ("", None),
        ("/", None),
        ("/nsid:7", Some(NamespaceChoice::Nsid(Nsid(7)))),
        ("/7", name("7")),
        ("/0007", name("0007")),
        ("/nsid%3A7", name("nsid:7")),
        ("/nsid:4294967294", Some(NamespaceChoice::Nsid(Nsid::MAX))),
        ("/%37", name("7")),
        ("/7.tar", name("7.tar")),
        ("/train/000.tar", name("train/000.tar")),
        ("/a%20b%2Fc%25%3F@", name("a b/c%?@")),
        ("/gr%C3%B6%C3%9Fe", name("größe")),
    ] {
        let parsed = source(&format!("nvmf://[::1]:5/{nqn}{path}")).expect(path);
        assert_eq!(parsed.target.to_string(), "nvmf://[::1]:5");
        assert_eq!((parsed.nqn.as_str(), parsed.namespace), (nqn, namespace), "{path}");
    }
    let encoded = source("nvmf://a/nqn.2026-01.org.example:a%2Fb/1").expect("valid");
    assert_eq!(encoded.nqn.as_str(), "nqn.2026-01.org.example:a/b");
}

#[test]
fn other_sources_are_refused() {
    assert_eq!(source("nvmf://a"), Err(Error::NoNqn));
    assert_eq!(source("nvmf://a/"), Err(Error::NoNqn));
    assert_eq!(source("nvmf://a//1"), Err(Error::NoNqn));
    assert_eq!(source("nvmf://a/n/nsid:0"), Err(Error::Nsid("0".to_owned())));
    assert_eq!(source("nvmf://a/n/nsid:4294967295"), Err(Error::Nsid("4294967295".to_owned())));
    assert_eq!(source("nvmf://a/n/nsid:99999999999"), Err(Error::Nsid("99999999999".to_owned())));
    assert_eq!(source("nvmf://a/n/nsid:"), Err(Error::Nsid(String::new())));
    assert_eq!(source("nvmf://a/n/nsid:+1"), Err(Error::Nsid("+1".to_owned())));
    for text in ["%", "%4", "a%4g", "%ff", "%C3"] {
        assert_eq!(source(&format!("nvmf://a/n/{text}")), Err(Error::Encoding(text.to_owned())));
        assert_eq!(source(&format!("nvmf://a/{text}")), Err(Error::Encoding(text.to_owned())));
    }
    assert_eq!(source("nvmf://a/n%0A"), Err(Error::Nqn(InvalidNqn::ControlCharacter)));
    let control = Error::Name(InvalidName::ControlCharacter);
    assert_eq!(source("nvmf://a/n/%00"), Err(control));
    assert_eq!(source("nvmf://a/n/x?y"), Err(Error::Meaningless('?')));
}

fn hosts() -> impl Strategy<Value = UrlHost> {
    prop_oneof![
        any::<IpAddr>().prop_map(UrlHost::Address),
        "[a-z][a-z0-9]{0,20}(\\.[a-z]{1,20}){0,3}".prop_map(|name| target(&format!(
            "nvmf://{name}"
        ))
        .expect("a name")
        .host),
    ]
}

fn namespaces() -> impl Strategy<Value = NamespaceChoice> {
    let names = prop_oneof!["\\PC{1,40}", "[0-9]{1,12}", "nsid:[0-9%:]{0,3}", "[/%?# a]{1,9}"];
    let name = |text: String| text.parse().map(NamespaceChoice::Name).ok();
    prop_oneof![
        (1..=Nsid::MAX.0).prop_map(|nsid| NamespaceChoice::Nsid(Nsid(nsid))),
        names.prop_filter_map("control characters", name),
    ]
}

proptest! {
    #[test]
    fn urls_round_trip(
        host in hosts(),
        port in 1_u16..,
        nqn in "[ -~ä]{1,60}",
        namespace in prop::option::of(namespaces()),
    ) {
        let target_url = TargetUrl { host, port };
        prop_assert_eq!(target(&target_url.to_string()), Ok(target_url.clone()));
        let nqn = nqn.parse().expect("no control characters");
        let url = SourceUrl { target: target_url, nqn, namespace };
        prop_assert_eq!(source(&url.to_string()), Ok(url));
    }

    #[test]
    fn any_text_is_a_url_or_refused(text: String) {
        for url in [text.clone(), format!("nvmf://{text}"), format!("nvmf://a/n/{text}")] {
            if let Ok(parsed) = source(&url) {
                prop_assert_eq!(source(&parsed.to_string()), Ok(parsed));
            }
            let _ = target(&url);
        }
    }
}
