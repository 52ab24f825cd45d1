//! Attachments without namespaces, at a switch that answers as it is told.

use super::*;
use sluicenet_testkit::Dir;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

fn wanted(netns: &str) -> Attach {
    Attach { netns: netns.into(), addresses: vec!["10.0.0.1/24".parse().unwrap()], ..Attach::default() }
}

#[test]
fn a_port_has_the_name_of_its_namespace() {
    for (netns, name) in [("red1", "red1"), ("/run/netns/cni-1", "cni-1")] {
        assert_eq!(wanted(netns).port_name().unwrap(), name);
    }
    assert!(matches!(wanted("/proc/12/ns/net").port_name(), Err(AttachError::Invalid(_))));
    assert_eq!(device_name("red1"), "red1");
    let long = device_name("a-port-with-a-long-name");
    assert!(long.len() <= 15 && long != device_name("a-port-with-a-long-name2"), "{long}");
}

#[test]
fn a_setting_that_is_given_twice_is_refused() {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    given_once(&words(&["tenant=7", "rate=10 Mb/s"])).unwrap();
    let twice = words(&["tenant=7", "rate=10 Mb/s", "tenant = 8"]);
    let refused = Attach { settings: twice.clone(), ..wanted("red1") }.check();
    for refused in [refused, add_port(Path::new("vs.sock"), "a", &twice).map(drop)] {
        assert!(
            matches!(&refused, Err(AttachError::Invalid(why)) if why == "tenant = 8: `tenant` is given twice"),
            "{refused:?}"
        );
    }
}

/// A switch that answers requests in turn with these lines; with an empty one it hangs up.
fn switch(folder: &Dir, answers: &'static [&'static str]) -> (PathBuf, JoinHandle<Vec<String>>) {
    let control = folder.0.join("vs.sock");
    let _ = std::fs::remove_file(&control);
    let listener = UnixListener::bind(&control).unwrap();
    let serve = move |answer: &&str| {
        let (stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        BufReader::new(&stream).read_line(&mut request).unwrap();
        (&stream).write_all(answer.as_bytes()).unwrap();
        request
    };
    (control, std::thread::spawn(move || answers.iter().map(serve).collect()))
}

const BUSY: &str = "{\"refused\":{\"error\":\"128 connections are open\",\"reason\":\"busy\"}}\n";

const NO_PORT: &str = "{\"refused\":{\"error\":\"there is no port a\",\"reason\":\"no-such-port\"}}\n";

#[test]
fn a_port_that_may_be_there_keeps_its_record() {
    let folder = Dir::new("attach-unanswered");
    let add = |answer: &'static [&'static str]| {
        let (control, served) = switch(&folder, answer);
        let added = add_port(&control, "a", &["kind=shm".to_owned()]);
        assert!(served.join().unwrap()[0].contains("add-port"));
        (added, Records::at(&control).get("a").unwrap().map(|record| record.added))
    };
    let (added, record) = add(&["{\"error\":\"no room\"}\n"]);
    assert!(matches!(&added, Err(AttachError::Refused(why)) if why == "no room") && record.is_none(), "{added:?}");
    let (added, record) = add(&[BUSY]);
    assert!(matches!(added, Err(AttachError::Busy(_))) && record.is_none(), "{added:?}");
    let (added, record) = add(&[""]);
    assert!(matches!(added, Err(AttachError::Unanswered(_))) && record == Some(true), "{added:?}");
    // Nor does it lose it before the switch says that there is no such port.
    let remove = |answer: &'static [&'static str]| {
        let (control, served) = switch(&folder, answer);
        let removed = remove_port(&control, "a").unwrap_err();
        assert!(served.join().unwrap()[0].contains("del-port"));
        (removed, Records::at(&control).get("a").unwrap().is_some())
    };
    assert!(matches!(remove(&[BUSY]), (AttachError::Busy(_), true)));
    assert!(matches!(remove(&[""]), (AttachError::Unanswered(_), true)));
    assert!(matches!(remove(&[NO_PORT]), (AttachError::NoSuchPort(_), false)));
}

#[test]
fn no_namespace_is_named_as_a_switch_likes() {
    let folder = Dir::new("attach-about");
    let (control, served) = switch(&folder, &["{\"about\":{\"name\":\"../../x\",\"mtu\":null,\"ports_free\":1}}\n"]);
    let refused = attach(&control, &wanted("red1")).unwrap_err().to_string();
    assert_eq!(refused, "\"../../x\": this is no name of a switch");
    assert_eq!((served.join().unwrap().len(), Records::at(&control).all().unwrap()), (1, vec![]));
}

#[test]
fn nothing_is_undone_while_the_switch_may_have_the_port() {
    let folder = Dir::new("attach-undo");
    let undone = |answers: &'static [&'static str]| {
        let (control, served) = switch(&folder, answers);
        let records = Records::at(&control);
        drop(records.lock().unwrap());
        records.write(&Record { port: "a".into(), added: true, ..Record::default() }).unwrap();
        let detached = detach(&control, "a");
        assert_eq!(served.join().unwrap().len(), answers.len());
        (detached.map(|record| record.is_some()), records.get("a").unwrap().is_some())
    };
    assert!(matches!(undone(&[BUSY]), (Err(AttachError::Busy(_)), true)));
    assert!(matches!(undone(&[""]), (Err(AttachError::Unanswered(_)), true)));
    assert!(matches!(undone(&["{\"error\":\"not now\"}\n"]), (Err(AttachError::Refused(_)), true)));
    assert!(matches!(undone(&[NO_PORT]), (Ok(true), false)));
    // No switch runs.
    std::fs::remove_file(folder.0.join("vs.sock")).unwrap();
    let records = Records::at(&folder.0.join("vs.sock"));
    records.write(&Record { port: "a".into(), added: true, ..Record::default() }).unwrap();
    assert!(detach(&folder.0.join("vs.sock"), "a").unwrap().is_some());
    assert_eq!(records.all().unwrap(), []);
}

#[test]
fn what_contradicts_itself_is_refused_before_anything_is_made() {
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let v4: IpAddr = "10.0.0.254".parse().unwrap();
    for (attach, words) in [
        (Attach { create: true, ..wanted("/run/netns/a") }, "only a namespace with a name can be made"),
        (Attach { mtu: Some(67), ..wanted("a") }, "an MTU of 67: 68 to 65535 are expected"),
        (Attach { gateways: vec![v6], ..wanted("a") }, "the gateway fd00::1: the device gets no address"),
        (Attach { gateways: vec![v4, v4], ..wanted("a") }, "there is another one of its family"),
        (Attach { settings: vec!["kind=tap".into()], ..wanted("a") }, "kind=tap: an attachment sets this itself"),
    ] {
        let error = attach.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_port_is_locked_to_its_addresses_unless_it_is_not_to_be() {
    let pair = Pair { netns: "sluicenet".into(), device: "red1".into() };
    let words = wanted("red1").words(&pair, [2, 0, 0, 0, 0, 10]);
    assert!(words.contains(&"mac=02:00:00:00:00:0a".to_owned()) && words.contains(&"ip=[\"10.0.0.1\"]".to_owned()));
    let open = Attach { unlocked: true, ..wanted("red1") }.words(&pair, [2, 0, 0, 0, 0, 10]);
    assert!(open.iter().all(|word| !word.starts_with("mac=") && !word.starts_with("ip=")), "{open:?}");
}
