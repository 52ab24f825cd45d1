use super::*;
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::vhost::Socket;
use sluicenet_node::vale::Action;
use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::guard::Guard;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Key, Kind, Spec};
use sluicenet_testkit::Dir;
use sluicenet_wire::ethernet::MacAddress;
use std::net::IpAddr;

fn parse(text: &str) -> Result<Config> {
    Config::parse(Path::new("vs.toml"), text)
}

#[test]
fn a_file_says_what_the_switch_is() {
    let config = parse(
        r#"
        [switch]
        slots = 64
        lossless = [3, 4]
        metrics = "9464"
        log = "json"
        [watchdog]
        detection_time = "400 ms"
        action = "alert"
        [[port]]
        name = "vm1"
        kind = "shm"
        mac = "02:00:00:00:00:0a"
        ip = "10.0.0.1"
        tenant = 7
        priority = 3
        rate = "2 Mb/s"
        send_rate = "3 Mb/s"
        "#,
    )
    .unwrap();
    assert_eq!((config.name.as_str(), config.vale.slots, config.vale.lossless.0), ("vs", 64, 0b11000));
    let watchdog = config.vale.watchdog;
    assert_eq!((watchdog.detection_time, watchdog.action), (Time::from_ms(400), Action::Alert));
    assert_eq!((watchdog.isolation_time, watchdog.isolates_after()), (Time::from_secs(10), None));
    assert_eq!((config.metrics, config.log), (Some(SocketAddr::from(([127, 0, 0, 1], 9464))), LogFormat::Json));
    assert_eq!(watchdog.restoration_time, Time::from_ms(200));
    let own = [2, 0, 0, 0, 0, 10];
    let guard = Guard {
        macs: vec![MacAddress(own)],
        addresses: Some(vec![IpAddr::from([10, 0, 0, 1]).into()]),
        router: false,
        dhcp_server: false,
    };
    let access = Access { domain: Some(7), priority: Some(3), guard: Some(Arc::new(guard)) };
    let kind = PortKind::Shm { buffers: 1024 };
    let port = PortConfig {
        name: "vm1".into(),
        kind,
        mac: Some(own),
        access,
        further: false,
        rate: Some(Rate::mbps(2)),
        send_rate: Some(Rate::mbps(3)),
        attached: false,
    };
    assert_eq!(config.ports, std::slice::from_ref(&port));
    let words = [
        "kind=shm",
        "mac=02:00:00:00:00:0a",
        "ip=10.0.0.1",
        "tenant=7",
        "priority=3",
        "rate=2 Mb/s",
        "send_rate=3 Mb/s",
    ]
    .map(str::to_owned);
    assert_eq!(port_from_words("vm1", &words).unwrap(), port);
    let words = ["kind=vhost-user", "socket=vm2.sock", "agent=true"].map(str::to_owned);
    let kind = PortKind::VhostUser { socket: Socket::Listen("vm2.sock".into()), agent: true };
    assert_eq!(port_from_words("vm2", &words).unwrap().kind, kind);
}

#[test]
fn an_endpoint_with_addresses_is_a_host_and_says_what_else_it_is() {
    let guard = |words: &[&str]| {
        let words: Vec<String> = ["kind=shm"].iter().chain(words).map(|&word| word.to_owned()).collect();
        let port = port_from_words("a", &words).unwrap();
        (port.access.guard.as_deref().map(|guard| [guard.router, guard.dhcp_server]), port)
    };
    assert_eq!(guard(&[]).0, None);
    assert_eq!(guard(&["router=true", "dhcp_server=true", "tenant=7"]).0, None);
    assert_eq!(guard(&["mac=02:00:00:00:00:0a"]).0, Some([false, false]));
    assert_eq!(guard(&["ip=10.0.0.1", "dhcp_server=true"]).0, Some([false, true]));
    assert_eq!(guard(&["router=false"]).0, Some([false, true]));
    let lists =
        ["mac=[\"02:00:00:00:00:0a\", \"02:00:00:00:00:0b\"]", "ip=[\"10.0.1.0/24\", \"2001:db8::1\", \"10.0.0.1\"]"];
    let (_, port) = guard(&lists);
    assert_eq!(port.stations().map(|(mac, _)| mac[5]).collect::<Vec<_>>(), [10, 11]);
    assert_eq!((port.mac, port.ipv4()), (Some([2, 0, 0, 0, 0, 10]), Some(Ipv4Addr::new(10, 0, 0, 1))));
}

#[test]
fn the_first_of_several_ports_with_an_address_is_found_by_it() {
    let port = |name: &str, more: &str| format!("[[port]]\nname = \"{name}\"\nkind = \"shm\"\n{more}\n");
    let own = "ip = \"10.0.0.1\"\ntenant = 7";
    let other = "ip = \"10.0.0.1\"\ntenant = 8";
    let file = [port("a", own), port("b", own), port("c", other), port("d", "tenant = 7"), port("e", "tenant = 7")];
    let config = parse(&file.concat()).unwrap();
    assert_eq!(config.ports.iter().map(|p| p.further).collect::<Vec<_>>(), [false, true, false, false, false]);
}

#[test]
fn an_ip_address_has_one_owner_in_a_tenant() {
    let port = |name: &str, kind: &str, more: &str| format!("[[port]]\nname = \"{name}\"\n{kind}\n{more}\n");
    let (guest, program) = ("kind = \"vhost-user\"\nsocket = \"NAME.sock\"", "kind = \"shm\"");
    let both = |a: &str, b: &str| {
        let file = port("a", guest, a) + &port("b", &guest.replace("NAME", "other"), b);
        parse(&file).map(drop).map_err(|e| e.to_string())
    };
    let refused = |a: &str, b: &str, shared: &str| {
        let error = both(a, b).unwrap_err();
        let words = format!("ports a and b of one tenant have the same `ip` {shared}");
        assert!(error.contains(&words) && error.contains(":10:"), "{error}");
    };
    refused("ip = \"10.0.0.1\"", "ip = \"10.0.0.1\"", "10.0.0.1");
    refused("ip = \"10.0.0.0/24\"", "ip = [\"10.0.1.7\", \"10.0.0.7\"]", "10.0.0.7");
    refused("ip = \"10.1.0.0/16\"", "ip = \"10.0.0.0/8\"", "10.1.0.0/16");
    refused("ip = \"2001:db8::1\"", "ip = \"2001:db8::/64\"", "2001:db8::1");
    refused("ip = \"fe80::1\"", "ip = \"fe80::1\"", "fe80::1");
    for (a, b) in [
        ("ip = \"10.0.0.1\"", "ip = \"10.0.0.2\""),
        ("ip = \"10.0.0.1\"\ntenant = 7", "ip = \"10.0.0.1\"\ntenant = 8"),
        ("ip = \"10.0.0.1\"", ""),
        // Every family, and every link-local address, as docs/switch.md advises.
        ("ip = [\"10.0.0.1\", \"::/0\"]", "ip = [\"10.0.0.2\", \"::/0\"]"),
        ("ip = [\"10.0.0.1\", \"fe80::/64\"]", "ip = [\"10.0.0.2\", \"fe80::/64\"]"),
    ] {
        both(a, b).unwrap();
    }
    let own = "ip = \"10.0.0.1\"";
    parse(&(port("a", program, own) + &port("b", program, own))).unwrap();
    assert!(parse(&(port("a", program, own) + &port("b", guest, own))).is_err());
}

const VETH: &str = "[[port]]\nname = \"a\"\nkind = \"veth\"\ntenant_netns = \"red1\"\n";
const UPLINK: &str = "[uplink]\ndevice = \"up0\"\nmac = \"02:00:00:00:01:01\"\nrate = \"1 Gb/s\"\n[overlay]\n\
    address = \"172.16.0.1\"\ncontroller = \"172.17.0.1:49789\"\nkey = \"key\"\n";

const NETWORK: &str = "[[network]]\ntenant = 7\nvni = 5\n";
const WEIGHT: &str = "[[zcredit.weight]]\ntenant = 7\nmac = \"02:00:00:00:00:0a\"\n";

#[test]
fn what_is_no_text_is_refused_with_its_line() {
    let file = std::env::temp_dir().join(format!("sluicenet-no-text-{}.toml", std::process::id()));
    std::fs::write(&file, b"[switch]\nname = \"v\xffs\"\n").unwrap();
    let error = Config::load(&file).unwrap_err();
    std::fs::remove_file(&file).unwrap();
    let found = error.diagnostic();
    assert_eq!((found.line, found.column, found.message.as_str()), (2, 10, "this is not text in UTF-8"), "{error}");
}

#[test]
fn what_a_command_says_is_refused_in_a_sentence() {
    let refused = |name: &str, words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&w| w.to_owned()).collect();
        port_from_words(name, &words).unwrap_err().sentence()
    };
    assert_eq!(refused("x", &["kind=shm", "mac=zz"]), "this is no MAC address: mac=zz; expected: as 02:00:00:00:00:01");
    let missing = refused("x", &[]);
    assert!(missing.starts_with("`kind` is missing in `x`; expected: ") && missing.contains("kind: how frames move"));
    assert!(refused("x", &["kind=shm", "bufers=4"]).contains("did you mean `buffers`"));
    assert!(refused("-rf", &["kind=shm"]).starts_with("this is no name; expected: "));
    let named = Config::without_file("a/b").map(drop).unwrap_err().sentence();
    assert!(named.starts_with("this is no name; expected: "), "{named}");
}

#[test]
fn what_is_wrong_is_refused_with_its_line() {
    let port = "[[port]]\nname = \"a\"\nkind = \"shm\"\n";
    for (text, line, words) in [
        ("[switch]\nslot = 1", 2, "did you mean `slots`"),
        ("[switch]\nslots = 0", 2, "out of range"),
        ("[switch]\nlossless = [8]", 2, "out of range"),
        ("[watchdog]\ndetection_time = 200", 2, "needs a unit"),
        ("[watchdog]\ndetection_time = \"0 s\"", 2, "`detection_time` of 0 is out of range in [watchdog]"),
        ("[watchdog]\nisolation_time = \"100 ms\"", 2, "at least `detection_time`"),
        ("[[port]]\nkind = \"shm\"", 1, "`name` is missing"),
        ("[[port]]\nname = \"a\"", 1, "`kind` is missing"),
        ("[[port]]\nname = \"a\"\nkind = \"tun\"", 3, "unknown kind `tun`"),
        ("[[port]]\nname = \"a\"\nkind = \"veth\"", 1, "`tenant_netns` is missing"),
        ("[[port]]\nname = \"a\"\nkind = \"vhost-user\"", 1, "`socket` is missing"),
        ("[[port]]\nname = \"a\"\nkind = \"shm\"\nmtu = 100", 4, "has no `mtu`"),
        (&format!("{port}agent = true"), 4, "has no `agent`"),
        ("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a\"\nconnect = \"b\"", 5, "not both"),
        ("[[port]]\nname = \"../a\"\nkind = \"shm\"", 2, "this is no name"),
        (&format!("{port}mac = \"2:0:0:0:0:1\""), 4, "no MAC address"),
        (&format!("{port}mac = \"00:00:00:00:00:00\""), 4, "nobody's"),
        (&format!("{port}mac = []"), 4, "lists 0 addresses"),
        (&format!("{port}mac = [\"02:00:00:00:00:01\", \"1\"]"), 4, "no MAC address"),
        (&format!("{port}ip = \"10.0.0\""), 4, "no IP address and no network"),
        (&format!("{port}ip = [\"10.0.0.1/24\"]"), 4, "bits behind its length"),
        (&format!("{port}ip = [\"ff02::1\"]"), 4, "not the address of one machine"),
        (&format!("{port}ip = {:?}", ["10.0.0.1"; 65]), 4, "lists 65 addresses"),
        (&format!("{port}router = 1"), 4, "true or false"),
        ("[[port]]\nname = \"-rf\"\nkind = \"shm\"", 2, "this is no name"),
        ("[switch]\ncontrol = \"a\\u0000b\"", 2, "control character"),
        (&format!("[switch]\ncontrol = \"/run/{}\"", "x".repeat(103)), 2, "107 is the most"),
        ("[switch]\nuser = \"\"", 2, "it is empty"),
        (
            "[switch]\nsocket_group = \"kvm\"\ncontrol = \"run/c\"\n[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"run/a\"",
            2,
            "the control socket is in the folder of a guest's socket",
        ),
        (
            "[switch]\nsocket_group = \"kvm\"\ncontrol = \"run/c\"\nsocket_folders = [\"a\", \"run\"]",
            2,
            "the control socket is in the folder of a guest's socket",
        ),
        ("[switch]\nuser = \"nobody\"\nhotplug = true", 3, "unknown key `hotplug`"),
        (&format!("{VETH}device = \"a\\u0000b\""), 5, "control character"),
        (&format!("{VETH}device = \"a/b\""), 5, "no device's name"),
        (&format!("{VETH}tenant_device = \"sixteen-bytes-xx\""), 5, "15 is the most"),
        (&format!("{VETH}netns = \"a\\nb\""), 5, "control character"),
        (&format!("{VETH}netns = \"../a\""), 5, "this is no namespace"),
        ("[[port]]\nname = \"longer-than-a-device\"\nkind = \"packet\"", 2, "a device cannot be called so"),
        (&format!("{port}ip = \"0.0.0.0\""), 4, "not the address of one machine"),
        (
            &format!("{UPLINK}[[server]]\naddress = \"0.0.0.0\"\nmac = \"02:00:00:00:00:02\""),
            10,
            "not the address of one",
        ),
        (&format!("{port}mac = \"01:00:00:00:00:01\""), 4, "a group of machines"),
        (&format!("{port}rate = 2"), 4, "needs a unit"),
        (&format!("{port}rate = \"0 b/s\""), 4, "`rate` of 0 is out of range in [port]"),
        (&format!("{port}buffers = 1000"), 4, "not a power of two"),
        ("[switch]\nmetrics = \"here\"", 2, "no address to listen at"),
        ("[switch]\nlog = \"xml\"", 2, "json"),
        ("[switch]\nports = 4\nstations = 100\nstations_per_port = 26", 4, "more than the 100 of the table"),
        (
            &format!(
                "[switch]\nports = 2\nstations = 1\n{port}mac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"b\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:02\""
            ),
            3,
            "the ports have 2 MAC addresses",
        ),
        (&format!("{port}{port}"), 4, "two ports are called `a`"),
        (&format!("{UPLINK}[zcredit]\nrx_queue = 0"), 10, "out of range"),
        (&format!("{UPLINK}[zcredit]\nrx_queue = 4\nbatch = 5"), 11, "does not fit a receive queue of 4"),
        (&format!("[switch]\nlossless = []\n{UPLINK}[zcredit]"), 11, "no priority of [switch] is lossless"),
        (
            &format!("{UPLINK}{WEIGHT}weight = 2\n[[network]]\ntenant = 8\nvni = 5"),
            10,
            "no network of the overlay is that of tenant 7",
        ),
        (
            &format!("{UPLINK}[zcredit]\n{WEIGHT}weight = 2\n{WEIGHT}weight = 2\n{NETWORK}"),
            16,
            "this machine stands here twice",
        ),
        (&format!("{UPLINK}{WEIGHT}weight = 0\n{NETWORK}"), 12, "out of range"),
        ("[zcredit]\nrx_queue = 8", 1, "[zcredit] without [uplink]"),
        (&format!("{UPLINK}[zbridge]\nperiod = 8\nbuffer = 15"), 11, "less than two periods"),
        (&format!("[switch]\nlossless = []\n{UPLINK}[zbridge]"), 11, "no priority of [switch] is lossless"),
        ("[zbridge]\nperiod = 8", 1, "[zbridge] without [uplink]"),
        (
            "[uplink]\ndevice = \"u\"\nmac = \"02:00:00:00:00:01\"\nrate = \"1 Gb/s\"\nsegmentation = 1",
            5,
            "an integer where true or false should be",
        ),
        ("[tcp_tunnel]\nnagle = true", 1, "[tcp_tunnel] without [uplink]"),
        (&format!("{UPLINK}[zbridge]\n[tcp_tunnel]"), 10, "so does zBridge"),
        (&format!("{UPLINK}[tcp_tunnel]\nbuffer = \"2 KB\""), 10, "must hold two segments"),
        (&format!("{UPLINK}[tcp_tunnel]\nmax_buffer = \"2 KB\""), 10, "a max_buffer of 2000 B is out of range"),
        (
            &format!("{UPLINK}[tcp_tunnel]\nbuffer = \"20 KB\"\nmax_buffer = \"10 KB\""),
            10,
            "to 10000 B, which is max_buffer",
        ),
        (&format!("{UPLINK}[tcp_tunnel]\npriority = 8"), 10, "out of range"),
        (
            &format!("{UPLINK}[tcp_tunnel]\nuser_timeout = \"10 ms\""),
            10,
            "`user_timeout` of 10 ms is out of range in [tcp_tunnel]",
        ),
        (&format!("{UPLINK}[tcp_tunnel]\nbufer = \"2 MB\""), 10, "unknown key `bufer`"),
        (
            "[uplink]\ndevice = \"u\"\nmac = \"02:00:00:00:00:01\"\nrate = \"1 Gb/s\"\n[zcredit]",
            5,
            "[zcredit] without [overlay]",
        ),
        ("[qcn]\nlimiters = \"flow\"", 1, "[qcn] without [uplink]"),
        ("[ets]\nstrict = [7]", 1, "[ets] without [uplink]"),
        (&format!("{UPLINK}[qcn]\nlimiters = \"off\""), 10, "unknown limiters `off`"),
        (&format!("{UPLINK}[qcn]\nmin_rate = \"2 Gb/s\""), 10, "2 Gb/s is above the rate of the uplink"),
        (&format!("{UPLINK}[qcn]\nmin_rate = \"0 b/s\""), 10, "out of range"),
        (&format!("{UPLINK}[qcn]\nenabled = true"), 10, "unknown key `enabled`"),
        (&format!("{UPLINK}[qcn]\ngd = 0"), 10, "out of range"),
        (
            &format!("{UPLINK}[ets]\n[[ets.group]]\npriorities = [0, 1, 2, 3, 4, 5, 6, 7]\nbandwidth = 99"),
            10,
            "the bandwidths of the groups are 99 % in all",
        ),
        (
            &format!("{UPLINK}[ets]\nstrict = [7]\n[[ets.group]]\npriorities = [0, 1]\nbandwidth = 100"),
            11,
            "priority 2 is in no group, and not strict",
        ),
        ("port = 3", 1, "a list of tables"),
        ("[switch\n", 1, "this is not TOML"),
    ] {
        let error = parse(text).unwrap_err();
        let found = error.diagnostic();
        assert_eq!(found.file, "vs.toml");
        assert_eq!(found.line, line, "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
    assert!(port_from_words("x", &["kind=shm".into(), "bufers=4".into()]).is_err());
    assert!(port_from_words("uplink", &["kind=shm".into()]).is_err());
}

#[test]
fn an_uplink_has_limiters_and_shares_of_bandwidth_if_the_file_says_so() {
    let uplink = "[uplink]\ndevice = \"up0\"\nmac = \"02:00:00:00:01:01\"\nrate = \"1 Gb/s\"\n";
    let of = |more: &str| parse(&format!("{uplink}{more}")).unwrap().uplink.unwrap();
    assert_eq!((of("").limiting, of("").ets), (None, None));
    // An empty section has the defaults: Table 2.1 of Crisan 2014.
    let usual = ReactionPointConfig::crisan2014(Rate::gbps(1));
    let limiting = |limiters, limiter| Some(Limiting { limiters, limiter });
    assert_eq!(of("[qcn]\n").limiting, limiting(LimitersOf::Destination, usual));
    let limiter = ReactionPointConfig { time_reset: None, min_rate: Rate::mbps(1), gd: 8, ..usual };
    let text = "[qcn]\nlimiters = \"flow\"\ntime_reset = \"off\"\nmin_rate = \"1 Mb/s\"\ngd = 8\n";
    assert_eq!(of(text).limiting, limiting(LimitersOf::Flow, limiter));
    let ets = of("[ets]\nstrict = [7]\n[[ets.group]]\npriorities = [0, 1, 2]\nbandwidth = 60\n\
                  [[ets.group]]\npriorities = [3, 4, 5, 6]\nbandwidth = 40\n")
    .ets
    .unwrap();
    let shares: Vec<_> = ets.groups().iter().map(|group| (group.priorities.0, group.bandwidth)).collect();
    assert_eq!((ets.strict().0, shares), (0b1000_0000, vec![(0b111, 60), (0b111_1000, 40)]));
}

/// Two machines of two groups, of which one has two vNICs, and a gateway.
const POLICY: &str = r#"
[switch]
lossless = [0]
[[port]]
name = "a"
kind = "shm"
mac = "02:00:00:00:00:01"
[[port]]
name = "a2"
kind = "shm"
mac = "02:00:00:00:01:01"
priority = 1
[[port]]
name = "out"
kind = "packet"
[[policy.machine]]
name = "db"
group = "red"
mac = "02:00:00:00:00:01"
lossy_mac = "02:00:00:00:01:01"
[[policy.machine]]
group = "blue"
mac = "02:00:00:00:00:02"
[[policy.machine]]
outside = true
lossy_mac = "02:00:00:00:01:fe"
[[policy.rule]]
party = "db"
peer = "outside"
allow = false
"#;

#[test]
fn a_policy_says_who_may_talk_to_whom() {
    let station = |n: u8, low: u8| Station::new([2, 0, 0, 0, n, low], 0);
    let config = parse(POLICY).unwrap();
    let policy = config.policy.as_ref().unwrap();
    for (from, to, class, may) in [
        (station(0, 1), station(0, 2), 0, false),
        (station(0, 2), station(0, 2), 0, true),
        (station(0, 1), station(1, 1), 0, false),
        (station(1, 1), station(1, 0xfe), 1, false),
        (station(1, 3), station(1, 0xfe), 1, false),
        (station(1, 0xfe), station(1, 0xfe), 1, true),
    ] {
        assert_eq!(policy.allows(from, to, class), may, "{from:?} {to:?} {class}");
    }
    let allowed = parse(&POLICY.replace("allow = false", "allow = true")).unwrap().policy.unwrap();
    assert!(allowed.allows(station(1, 0xfe), station(1, 1), 1) && !allowed.allows(station(1, 0xfe), station(1, 1), 0));
    assert!(parse("").unwrap().policy.is_none());
    // In a policy without groups, all machines may communicate.
    assert!(parse("[policy]").unwrap().policy.unwrap().allows(station(0, 1), station(0, 2), 0));
}

#[test]
fn a_policy_that_means_nothing_is_refused_with_its_line() {
    for (from, to, line, words) in [
        ("group = \"red\"", "grop = \"red\"", 18, "did you mean `group`"),
        ("group = \"red\"", "group = \"r d\"", 18, "this is no name"),
        ("group = \"red\"", "tenant = 4096", 18, "out of range"),
        ("name = \"db\"", "name = \"outside\"", 17, "is called something else already"),
        ("name = \"db\"", "name = \"red\"", 16, "`red` is a group"),
        ("group = \"blue\"", "group = \"outside\"", 16, "`outside` is a group"),
        ("group = \"blue\"", "name = \"db\"", 22, "is called something else already"),
        ("mac = \"02:00:00:00:00:02\"", "mac = \"02:00:00:00:01:01\"", 23, "stands here twice"),
        ("mac = \"02:00:00:00:00:02\"", "", 21, "`mac` is missing"),
        ("mac = \"02:00:00:00:00:02\"", "lossy_mac = \"no\"", 23, "no MAC address"),
        ("outside = true", "outside = true\ngroup = \"red\"", 26, "of no group"),
        ("outside = true", "outside = true\nname = \"gw\"", 26, "is called `outside`"),
        ("peer = \"outside\"", "peer = \"host 1 vm 0\"", 29, "nobody is called `host 1 vm 0`"),
        ("peer = \"outside\"", "", 27, "`peer` is missing"),
        ("allow = false", "", 27, "`allow` is missing"),
        ("lossless = [0]\n", "", 19, "every priority of [switch] is lossless"),
        ("priority = 1\n", "", 8, "say which lossy priority"),
        ("priority = 1\n", "priority = 0\n", 12, "priority 0 is lossless"),
        ("kind = \"packet\"", "kind = \"shm\"", 13, "needs a `mac`"),
    ] {
        assert!(POLICY.contains(from), "{from}");
        let Err(error) = parse(&POLICY.replacen(from, to, 1)) else { panic!("{from} -> {to}") };
        let found = error.diagnostic();
        assert!(error.to_string().contains(words), "{to}: {error}");
        assert_eq!(found.line, line, "{from} -> {to}: {error}");
    }
    let rule = "[[policy.rule]]\nparty = \"red\"\npeer = \"blue\"\nallow = true\n";
    let e = parse(&format!("{POLICY}{}", rule.repeat(4096))).unwrap_err();
    assert!(e.to_string().contains("more rules than 4096"), "{e}");
}

/// The value of a default that a description names: it stands at the end of a phrase, as `default 200 ms`.
fn described_default(doc: &str) -> Option<&str> {
    let (_, rest) = doc.split_once("default ")?;
    let value = rest.split([';', ',']).next()?.trim();
    let is_value = value.starts_with(|c: char| c.is_ascii_digit()) || !value.contains(' ');
    is_value.then_some(value)
}

/// The keys of a table.
fn of_table(key: &Key) -> Option<&'static Spec> {
    match (key.kind)() {
        Kind::Table(spec) => Some(spec),
        Kind::Tables(&[spec]) => Some(spec),
        _ => None,
    }
}

#[test]
fn a_described_default_is_the_one_that_is_used() {
    let file = std::env::temp_dir().join(format!("sluicenet-defaults-{}.key", std::process::id()));
    std::fs::write(&file, "00".repeat(32)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with_key = UPLINK.replace("\"key\"", &format!("{:?}", file.to_str().unwrap()));
    let overlay = UPLINK.split_once("[overlay]").unwrap();
    let port = |kind: &str| format!("[[port]]\nname = \"a\"\nkind = \"{kind}\"\n");
    // A file for each table, in which a key of that table can be added at the end.
    let files = [
        ("switch", "[switch]\n".to_string()),
        ("watchdog", "[watchdog]\n".into()),
        ("uplink", overlay.0.into()),
        ("qcn", format!("{}[qcn]\n", overlay.0)),
        ("overlay", with_key.clone()),
        ("zcredit", format!("{with_key}[zcredit]\n")),
        ("zbridge", format!("{with_key}[zbridge]\n")),
        ("tcp_tunnel", format!("{with_key}[tcp_tunnel]\n")),
        ("port", port("shm")),
        ("port", VETH.into()),
        ("port", port("tap") + "mac = \"02:00:00:00:00:0a\"\ntenant_netns = \"red1\"\n"),
        ("port", port("packet") + "device = \"eth1\"\n"),
        ("port", port("vhost-user") + "socket = \"a.sock\"\n"),
    ];
    let mut compared = std::collections::BTreeSet::new();
    for (table, file) in files {
        let spec = of_table(ROOT.key(table).unwrap()).unwrap();
        let without = format!("{:?}", parse(&file).unwrap());
        for key in spec.keys {
            let Some(value) = described_default(key.doc) else { continue };
            let written = [value.to_string(), format!("{value:?}")];
            let with = written.iter().find_map(|value| parse(&format!("{file}{} = {value}\n", key.name)).ok());
            if let Some(with) = with {
                assert_eq!(format!("{with:?}"), without, "[{table}] {}: default {value}", key.name);
                compared.insert((table, key.name));
            }
        }
    }
    let is_number = |doc| described_default(doc).is_some_and(|value| value.starts_with(|c: char| c.is_ascii_digit()));
    for (table, spec) in ROOT.keys.iter().filter_map(|key| Some((key.name, of_table(key)?))) {
        let missing = spec.keys.iter().find(|key| is_number(key.doc) && !compared.contains(&(table, key.name)));
        assert!(missing.is_none(), "{table}: {missing:?}");
    }
    std::fs::remove_file(&file).unwrap();
    assert!(compared.len() > 25, "{compared:?}");
}

#[test]
fn a_process_that_needs_no_keys_reads_none() {
    let dir = Dir::new("config-keys");
    let file = dir.0.join("vs.toml");
    std::fs::write(&file, UPLINK).unwrap();
    let missing = Config::load(&file).unwrap_err().to_string();
    assert!(missing.contains("key: No such file"), "{missing}");
    let config = Config::load_without_keys(&file).unwrap();
    assert_eq!(config.uplink.unwrap().overlay.unwrap().key, [0; 32]);
}
