//! Loading a scenario: text, overrides and input files in, a validated model out.

use serde_json::{Map, Value as Json};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::error::{Error, Result, Warning};
use super::files::{Files, Input};
use super::formats::{HtsimTier, TierQueue};
use super::locations::Locations;
use super::losses::Losses;
use super::model::{active_queue, bump, *};
use super::setting::{Choice, Section};
use super::sonic;
use super::sweep::{self, Variant};
use super::tree::{self, Document, Value};
use super::units::Bytes;

/// The largest scenario file read: larger ones are refused before reading.
pub const SCENARIO_BYTES_MAX: u64 = 16 << 20;
/// Workloads a scenario may have: messages between servers name their workload in a byte.
const WORKLOADS_MAX: usize = 256;

/// A scenario as loaded, with all it came from.
#[derive(Debug)]
pub struct Loaded {
    /// The scenario itself, without the variations of `[sweep]`. A list of one value there varies nothing and is a setting.
    pub scenario: Scenario,
    /// The file's name.
    pub file: String,
    /// Its text.
    pub source: String,
    /// The overrides of the command line, as given.
    pub overrides: Vec<String>,
    /// Warnings about the scenario and its input files.
    pub warnings: Vec<Warning>,
    document: Arc<Document>,
    files: Mutex<Files>,
}

impl Scenario {
    /// Loads a scenario from a file; names of input files are relative to its folder.
    ///
    /// # Errors
    /// The first fault that makes the scenario unusable, with its place.
    pub fn load(path: impl AsRef<Path>) -> Result<Loaded> {
        Scenario::load_with(path, &[])
    }

    /// Loads a scenario and applies overrides, each `key=value` with a dotted key.
    ///
    /// # Errors
    /// As [`Scenario::load`]; errors of an override point into it, as file `--set`.
    pub fn load_with(path: impl AsRef<Path>, overrides: &[String]) -> Result<Loaded> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let bytes = crate::formats::read_bounded(path, &name, SCENARIO_BYTES_MAX)?;
        let text =
            String::from_utf8(bytes).map_err(|e| Error::not_text(&name, e.as_bytes(), e.utf8_error().valid_up_to()))?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Loaded::new(name, text, overrides, Files::new(Some(folder.to_path_buf())))
    }

    /// Reads a scenario from text, which may name no input files; errors call the text `name`.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, name: &str) -> Result<Loaded> {
        Scenario::parse_in(text, name, None, &[])
    }

    /// Reads a scenario from text, with the folder its input files are relative to and with overrides.
    ///
    /// # Errors
    /// As [`Scenario::load_with`].
    pub fn parse_in(text: &str, name: &str, folder: Option<&Path>, overrides: &[String]) -> Result<Loaded> {
        if text.len() as u64 > SCENARIO_BYTES_MAX {
            return Err(Error::file(name, format!("this scenario is larger than {} MiB", SCENARIO_BYTES_MAX >> 20)));
        }
        Loaded::new(name.into(), text.into(), overrides, Files::new(folder.map(Path::to_path_buf)))
    }

    /// As [`Scenario::parse_in`], on a machine that may lack the input files: those among `inputs` are not read again.
    ///
    /// # Errors
    /// As [`Scenario::load_with`].
    pub fn parse_with_inputs(
        text: &str,
        name: &str,
        folder: &Path,
        overrides: &[String],
        inputs: Vec<Input>,
    ) -> Result<Loaded> {
        let mut files = Files::new(Some(folder.to_path_buf()));
        files.inputs = inputs.into_iter().map(|input| (input.path, input.bytes)).collect();
        Loaded::new(name.into(), text.into(), overrides, files)
    }

    /// One text for equal scenarios: JSON with every default resolved and every quantity in base units. Together with
    /// the bytes of [`Loaded::inputs`] it is all a run depends on.
    ///
    /// # Errors
    /// None in practice: the model holds nothing JSON cannot say.
    pub fn canonical_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::file(&self.name, format!("cannot be written as JSON: {e}")))
    }

    /// The canonical form by section and key, as a file has them where file and model have the same keys.
    ///
    /// # Errors
    /// As [`Scenario::canonical_json`].
    pub fn settings(&self) -> Result<Json> {
        const LISTS: [(&str, &str); 4] =
            [("workloads", "workload"), ("failures", "failure"), ("slowdowns", "slowdown"), ("bumps", "bump")];
        let all: Map<String, Json> = serde_json::from_str(&self.canonical_json()?)
            .map_err(|e| Error::file(&self.name, format!("cannot be read as JSON: {e}")))?;
        let (mut general, mut sections) = (Map::new(), Map::new());
        for (key, value) in all {
            match LISTS.iter().find(|(model, _)| *model == key) {
                Some((_, of_file)) => sections.insert((*of_file).into(), value),
                None if value.is_object() || value.is_array() => sections.insert(key, value),
                None => general.insert(key, value),
            };
        }
        sections.insert("scenario".into(), general.into());
        if let Some(Json::Object(topology)) = sections.get_mut("topology") {
            flatten_links(topology);
        }
        Ok(sections.into())
    }

    /// The largest IP packet of a virtual machine (or of a server without virtual network).
    pub fn host_mtu(&self) -> super::Bytes {
        let bare = super::Bytes(self.framing.mtu.0 - self.zbridge.growth());
        if self.overlay.enabled { self.overlay.mtu } else { bare }
    }
}

/// Gives links the keys that they have in a file; levels with the same links as all others are left out.
fn flatten_links(topology: &mut Map<String, Json>) {
    let Some(link) = topology.remove("link") else { return };
    if let Some(Json::Array(levels)) = topology.remove("levels") {
        if levels.iter().any(|level| *level != link) {
            topology.insert("level".into(), levels.into());
        }
    }
    let Json::Object(link) = link else { return };
    let name = |key: String| if key == "bit_error_rate" { key } else { format!("link_{key}") };
    topology.extend(link.into_iter().map(|(key, value)| (name(key), value)));
}

impl Loaded {
    fn new(file: String, source: String, overrides: &[String], mut files: Files) -> Result<Loaded> {
        let mut document = Document::parse(&file, &source)?;
        for o in overrides {
            document.set_text(o)?;
        }
        // Whichever of the two the command line sets is set in place of the file's.
        for (key, other) in [("hypervisor", "flow_control"), ("flow_control", "hypervisor")] {
            if document.override_of(&format!("scenario.{key}")).is_some() {
                document.take_from_file("scenario", other);
            }
        }
        let document = Arc::new(document);
        let mut warnings = Vec::new();
        let outcome = base(&document, &mut files, &mut warnings);
        warnings.append(&mut files.warnings);
        let scenario = match outcome {
            Ok(scenario) => scenario,
            Err(e) => return Err(e.after(warnings)),
        };
        let overrides = overrides.to_vec();
        Ok(Loaded { scenario, file, source, overrides, warnings, document, files: Mutex::new(files) })
    }

    /// Refuses to be run with other seeds than its own where it varies or sets them.
    ///
    /// # Errors
    /// Points at the override, or at the seeds in `[sweep]`.
    pub fn check_seeds(&self) -> Result<()> {
        sweep::check_seeds(&self.document)
    }

    /// The input files read so far, by name: those of the scenario, and of the variants once they are expanded.
    pub fn inputs(&self) -> Vec<Input> {
        let files = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        files.inputs.iter().map(|(path, bytes)| Input { path: path.clone(), bytes: bytes.clone() }).collect()
    }

    /// Whether it is several runs: whether `[sweep]` varies anything that no override fixes.
    pub fn is_varied(&self) -> bool {
        sweep::shown(&self.document).is_ok_and(|axes| axes.iter().any(|shown| !shown.axis.is_fixed))
    }

    /// The scenario's variants: every combination of the values in `[sweep]`, the last key varying fastest; the
    /// scenario alone where there is no sweep.
    ///
    /// # Errors
    /// A variant that is no valid scenario, pointing at the value in `[sweep]`, or more than
    /// [`VARIANTS_MAX`](super::VARIANTS_MAX) variants.
    pub fn expand_sweep(&self) -> Result<Vec<Variant>> {
        let mut files = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut variants = sweep::expand(&self.document, &mut files)?;
        // Settings of a variant stand in `[sweep]`; all other settings stand where the base has them.
        for Variant { scenario, .. } in &mut variants {
            scenario.locations = self.scenario.locations.clone();
            scenario.tables = self.scenario.tables.clone();
        }
        Ok(variants)
    }
}

/// The scenario that a document gives, without what its sweep varies.
fn base(document: &Document, files: &mut Files, warnings: &mut Vec<Warning>) -> Result<Scenario> {
    let base = sweep::base(document)?;
    let merged = sonic::merged(&base, files, warnings)?;
    let mut scenario = read(&merged, files, warnings)?;
    scenario.tables = tables_of(document)?;
    scenario.locations = Locations::new(merged.into_owned());
    warnings.extend(idle_oversubscription(document, &scenario)?);
    warnings.extend(idle_xco(document, &scenario)?);
    warnings.extend(idle_watchdog(document, &scenario)?);
    warnings.extend(changed_default(document, &scenario)?);
    Ok(scenario)
}

/// The model of a document that [has the keys of its file](sonic::merged).
pub(super) fn read(doc: &Document, files: &mut Files, warnings: &mut Vec<Warning>) -> Result<Scenario> {
    let root = Section::root(doc, &ROOT)?;
    let s_general = root.section("scenario")?;
    let general = General::read(&s_general)?;
    general.check(&s_general)?;
    let (set, lossless_virtual, lossless) =
        (general.parameters, general.virtual_lossless(), general.physical_lossless());
    let s_server = root.section("server")?;
    let server = Server::read(&s_server, set)?;
    server.check(&s_server)?;
    if lossless_virtual == Some(true) && !server.virtual_network {
        let error = s_general
            .error_at(&["flow_control", "hypervisor"], "it says a lossless virtual network, and there is none");
        return Err(error.hint("set server.virtual_network = true"));
    }
    if !root.has("topology") {
        return Err(root
            .error_here(match doc.root.entries.is_empty() {
                true => "this scenario is empty",
                false => "this scenario has no [topology]",
            })
            .hint("a scenario needs a [topology] and a [[workload]] at least; docs/scenario.md has every key"));
    }
    let topology = Topology::read(&root.section("topology")?, set, files)?;
    let counts = topology.counts();
    let s_framing = root.section("framing")?;
    let framing = Framing::read(&s_framing, set)?;
    let (s_switch, s_adapter) = (root.section("switch")?, root.section("adapter")?);
    let switch = Switch::read(&s_switch, set)?;
    switch.check(&s_switch)?;
    let s_zbridge = root.section("zbridge")?;
    let zfabric = general.has_stack(Hypervisor::ZFabric);
    let zbridge = ZBridge::read(&s_zbridge, zfabric)?;
    zbridge.check(&s_zbridge, zfabric, &server, counts)?;
    let pairs = settings_of_queue_pairs(&root, &framing)?;
    let adapter = Adapter::read(&s_adapter, set, topology.routing, &zbridge, pairs.as_ref())?;
    adapter.check(&s_adapter, &zbridge, pairs.as_ref(), warnings)?;
    let smallest = smallest_buffer(&topology, (&s_switch, &switch), (&s_adapter, &adapter), &framing)?;
    let s_pfc = root.section("pfc")?;
    let pfc = Pfc::read(&s_pfc, set, lossless, &server, topology.delay_per_metre)?;
    pfc.check(&s_pfc, lossless, (smallest, &server))?;
    let is_lossless = set == ParameterSet::Plain && pfc.enabled;
    let routing = root.section("topology")?.line("routing");
    adapter.warn_of_early_frames(&s_adapter, (pairs.as_ref(), is_lossless), routing, warnings);
    let s_buffer = root.section("buffer")?;
    let buffer = SharedBuffer::read(&s_buffer, set)?;
    buffer.check(&s_buffer, &s_switch, &s_pfc)?;
    let s_red = root.section("red")?;
    let fixed = general.congestion_management.map(CongestionManagement::red);
    let red = Red::read(&s_red, set, fixed)?;
    red.check(&s_red, fixed, &pfc)?;
    let wred = active_queue::profiles(&root, &pfc)?;
    if red.enabled && switch.ecn_threshold.is_some() {
        let error = s_switch.error("ecn_threshold", "RED selects the frames of every priority");
        return Err(error.hint("remove `ecn_threshold`, or set red.enabled = false"));
    }
    active_queue::warn(&root, (&red, &wred, &switch), (&pfc, &buffer), warnings)?;
    let s_qcn = root.section("qcn")?;
    let qcn = Qcn::read(&s_qcn, general.congestion_management, topology.routing)?;
    qcn.check(&s_qcn, (general.congestion_management, topology.routing, &zbridge), &pfc, warnings)?;
    let ets = Ets::read(&root.section("ets")?)?;
    let s_vswitch = root.section("vswitch")?;
    let vswitch = VSwitch::read(&s_vswitch, lossless_virtual, &server, counts)?;
    vswitch.check(&s_vswitch, lossless_virtual, &server)?;
    if server.lossy_vnic.is_some() && !vswitch.lossless {
        return Err(s_server
            .error("lossy_vnic", "the virtual switches are lossy, so that both vNICs of a machine would be")
            .hint("set scenario.flow_control = \"ZZ\", or scenario.hypervisor"));
    }
    let s_policy = root.section("policy")?;
    let policy = Policy::read(&s_policy, &server, counts)?;
    policy.check(&s_policy, &server)?;
    let s_zcredit = root.section("zcredit")?;
    let zcredit = ZCredit::read(&s_zcredit, zfabric, &server, &policy, counts)?;
    zcredit.check(&s_zcredit, zfabric, &server, counts)?;
    let s_overlay = root.section("overlay")?;
    let tunnel = general.has_stack(Hypervisor::Tcp);
    let overlay = Overlay::read(&s_overlay, tunnel, &server, &zbridge)?;
    overlay.check(&s_overlay, (&server, &zbridge), (&s_framing, &framing))?;
    overlay.check_tunnel(&s_overlay, tunnel, (&zbridge, &server, counts))?;
    let s_xco = root.section("xco")?;
    let xco = Xco::read(&s_xco, counts)?;
    xco.check(&s_xco, (general.level, &server, counts), (&zcredit, &zbridge, &overlay))?;
    let losses = Losses::of(&server, &vswitch, &pfc, &adapter, &topology, zbridge.enabled || overlay.tcp);
    let world = World {
        topology: &topology,
        counts,
        server: &server,
        adapter: &adapter,
        duration: general.duration,
        losses,
        dscp_to_tc: switch.dscp_to_tc.as_deref(),
    };
    let workloads = workloads(&root, &world, files)?;
    let bumps = bump::bumps(&root, &counts, general.level, files)?;
    let beside = Beside {
        are_tagged: qcn.enabled && qcn.limiters == Limiters::Flow,
        are_reported: bumps.iter().any(|bump| !bump.neighbours.is_empty()),
        growth: if overlay.enabled { 0 } else { zbridge.growth() },
    };
    framing.check(&s_framing, &beside)?;
    let marks = active_queue::marks(&red, &wred, &switch) || bumps.iter().any(Bump::marks);
    let (roce, dcqcn) = queue_pairs(&root, &framing, marks, &workloads, warnings)?;
    let failures = failures(&root, &topology, &counts)?;
    let mut slowdowns = slowdowns(&root, &counts, general.level)?;
    slowdowns.extend(workloads.iter().filter_map(Workload::slowdown));
    if general.level == Level::Flow && workloads.iter().any(|w| w.slowdown().is_some()) {
        let error =
            root.error("workload", "an output-generated hotspot is a slower link, which the flow level has not");
        return Err(error.hint("set scenario.level = \"packet\", or generated = \"input\""));
    }
    let s_control = root.section("control")?;
    let control = Control::read(&s_control, topology.routing)?;
    control.check(&s_control)?;
    let s_tcp = root.section("tcp")?;
    let tcp = Tcp::read(&s_tcp, set, marks)?;
    tcp.check(&s_tcp, set)?;
    let s_record = root.section("record")?;
    let record = Record::read(&s_record, &counts)?;
    record.check(&s_record, &counts, warnings)?;
    let managed = Managed { qcn: &qcn, wred: &wred, pfc: &pfc, marks, workloads: &workloads, dcqcn: dcqcn.as_ref() };
    managed.warn(&root, (&tcp, &record), warnings)?;
    let scenario = Scenario {
        general,
        flow_level: FlowLevel::read(&root.section("flow_level")?)?,
        control: topology.routing.has_control().then_some(control),
        topology,
        failures,
        slowdowns,
        bumps,
        switch,
        buffer,
        red: red.enabled.then_some(red),
        wred,
        qcn: qcn.enabled.then_some(qcn),
        ets,
        pfc,
        adapter,
        server,
        vswitch,
        zcredit,
        zbridge,
        xco: xco.enabled.then_some(xco),
        policy,
        overlay,
        framing,
        tcp,
        udp: Udp::read(&root.section("udp")?, set)?,
        tcplight: TcpLight::read(&root.section("tcplight")?, set)?,
        roce,
        dcqcn,
        workloads,
        record,
        testbed: Testbed::read(&root.section("testbed")?)?,
        tables: Vec::new(),
        locations: Locations::default(),
    };
    let tcp = scenario.tcp_config(scenario.host_mtu().as_bytes() as u16);
    tcp.validate().map_err(|e| {
        let keys = match e {
            sluicenet_proto::tcp::ConfigError::MaxBufferTooSmall { .. } => ["max_buffer", "buffer"],
            _ => ["buffer", "max_buffer"],
        };
        s_tcp.error_at(&keys, e.to_string())
    })?;
    Ok(scenario)
}

/// The smallest buffer of a switch, each of which holds a frame; so does that of an adapter. None if switches count
/// packets.
fn smallest_buffer(
    topology: &Topology,
    (s_switch, switch): (&Section<'_>, &Switch),
    (s_adapter, adapter): (&Section<'_>, &Adapter),
    framing: &Framing,
) -> Result<Option<Bytes>> {
    const NOTHING_PASSES: &str = "nothing would ever pass";
    let frame = framing.mtu.0 + framing.header_bytes();
    let too_small = |buffer: Bytes| format!("a buffer of {} B does not hold a frame of {frame} B", buffer.0);
    for (section, buffer) in [(s_switch, switch.buffer.bytes()), (s_adapter, Some(adapter.buffer))] {
        if let Some(buffer) = buffer.filter(|buffer| buffer.0 < frame) {
            return Err(section.error("buffer", too_small(buffer)).hint(NOTHING_PASSES));
        }
    }
    let of_file = topology.queues();
    let Some(of_switch) = switch.buffer.bytes() else {
        return match of_file.first() {
            Some((file, queue)) => Err(Error::line(
                *file,
                queue.line,
                "Queue_...",
                "this queue has a size in bytes, and switch.buffer counts packets",
            )
            .hint("give switch.buffer in bytes, or remove the queues of this file")),
            None => Ok(None),
        };
    };
    if let Some((file, queue)) = of_file.iter().find(|(_, queue)| queue.size.0 < frame) {
        return Err(Error::line(*file, queue.line, "Queue_...", too_small(queue.size)).hint(NOTHING_PASSES));
    }
    if let Some((file, queue)) = topology.uneven_queue(of_switch).filter(|_| switch.policy == BufferPolicy::Input) {
        let message = "queues up and down differ, and switch.policy = \"input\" has one size for all inputs";
        return Err(Error::line(file, queue.line, "Queue_...", message)
            .hint("set switch.policy = \"output\" or \"pooled\", or give both queues the same size"));
    }
    let of_scenario = (!topology.has_all_queues()).then_some(of_switch);
    let all = of_file.iter().map(|(_, queue)| queue.size).chain(of_scenario);
    Ok(Some(all.min().unwrap_or(of_switch)))
}

fn workloads(root: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<Vec<Workload>> {
    let tables = root.raw_tables("workload")?;
    if tables.is_empty() {
        return Err(root.error_here("this scenario has no workload").hint("add a [[workload]]"));
    }
    if tables.len() > WORKLOADS_MAX {
        return Err(root.error("workload", format!("{} workloads: at most {WORKLOADS_MAX}", tables.len())));
    }
    let first = tables[0].1;
    let read = |(table, span)| Workload::read(root.doc, table, span, world, files);
    let workloads: Vec<Workload> = tables.into_iter().map(read).collect::<Result<_>>()?;
    if world.duration.is_none() && !workloads.iter().any(Workload::is_finite) {
        let error = root.doc.error(first, "no workload of this scenario ends, and it has no duration");
        return Err(error.hint("set scenario.duration, or `bytes` of a flow"));
    }
    Ok(workloads)
}

/// Congestion management, and the traffic that it is for.
struct Managed<'a> {
    qcn: &'a Qcn,
    wred: &'a [Wred],
    pfc: &'a Pfc,
    marks: bool,
    workloads: &'a [Workload],
    dcqcn: Option<&'a Dcqcn>,
}

impl Managed<'_> {
    /// Warns of settings without any effect on the traffic.
    fn warn(&self, root: &Section<'_>, (tcp, record): (&Tcp, &Record), warnings: &mut Vec<Warning>) -> Result<()> {
        let mut warn = |(file, line): (String, u32), message: String| warnings.push(Warning { file, line, message });
        let used = self.workloads.iter().fold(0, |used, w| used | w.priorities());
        let own = self.qcn.priority;
        if self.qcn.enabled && used & !(1 << own) == 0 {
            let message =
                format!("all frames have priority {own}, which is that of notifications and has no congestion point");
            warn(root.section("qcn")?.line("priority"), message);
        }
        for (t, profile) in root.tables("wred")?.iter().zip(self.wred) {
            if profile.priorities & used == 0 {
                warn(t.line("priorities"), "no workload sends frames of these priorities".into());
            }
        }
        let lossless = if self.pfc.enabled { self.pfc.lossless } else { 0 };
        let is_lossy = |w: &&Workload| w.transport() == Transport::Roce && w.priorities() & !lossless != 0;
        if let Some(w) = self.workloads.iter().find(is_lossy) {
            let priority = (w.priorities() & !lossless).trailing_zeros();
            let remedy = if self.pfc.enabled { "add it to pfc.lossless" } else { "set pfc.enabled = true" };
            let message = format!(
                "queue pairs of RoCE send frames of priority {priority}, which is lossy: after a loss they send all again from \
                 there; {remedy}"
            );
            warn(root.section("pfc")?.line("lossless"), message);
        }
        if tcp.congestion == Congestion::Dctcp && !self.marks {
            let message =
                "no switch marks frames: DCTCP then behaves as NewReno; switch.ecn_threshold marks them".into();
            warn(root.section("tcp")?.line("congestion"), message);
        }
        let has_limiters = self.qcn.enabled && self.qcn.limiters != Limiters::Off || self.dcqcn.is_some();
        if record.limiters.is_some() && !has_limiters {
            warn(root.section("record")?.line("limiters"), "there are no rate limiters to sample".into());
        }
        Ok(())
    }
}

/// The settings of queue pairs that an adapter's defaults depend on, if a workload has `transport = "roce"`. Workloads are not
/// read yet.
fn settings_of_queue_pairs(root: &Section<'_>, framing: &Framing) -> Result<Option<QueuePairs>> {
    let is_roce = |table: &tree::Table| {
        table.get("transport").is_some_and(|e| matches!(&e.node.value, Value::Text(t) if t == Transport::Roce.word()))
    };
    // Tables that cannot be read are refused later.
    let workloads = root.raw_tables("workload").unwrap_or_default();
    let of_pairs = workloads.iter().filter(|(table, _)| is_roce(table)).count();
    if of_pairs == 0 {
        return Ok(None);
    }
    Ok(Some(QueuePairs {
        buffer: Bytes(2 * (framing.mtu.0 + framing.header_bytes())),
        timeout: Roce::read(&root.section("roce")?)?.timeout,
        has_others: of_pairs < workloads.len(),
    }))
}

/// Settings of queue pairs and of their congestion control, where workloads have queue pairs.
fn queue_pairs(
    root: &Section<'_>,
    framing: &Framing,
    marks: bool,
    workloads: &[Workload],
    warnings: &mut Vec<Warning>,
) -> Result<(Option<Roce>, Option<Dcqcn>)> {
    let (s_roce, s_dcqcn) = (root.section("roce")?, root.section("dcqcn")?);
    let (roce, dcqcn) = (Roce::read(&s_roce)?, Dcqcn::read(&s_dcqcn)?);
    if !workloads.iter().any(|w| w.transport() == Transport::Roce) {
        return Ok((None, None));
    }
    roce.check(&s_roce, framing)?;
    dcqcn.warn(&s_dcqcn, marks, warnings);
    Ok((Some(roce), dcqcn.enabled.then_some(dcqcn)))
}

fn failures(root: &Section<'_>, topology: &Topology, counts: &Counts) -> Result<Vec<Failure>> {
    let tables = root.tables("failure")?;
    if tables.len() > FAILURES_MAX {
        return Err(root.error("failure", format!("{} failures: at most {FAILURES_MAX}", tables.len())));
    }
    let read = |t: Section<'_>| {
        let failure = Failure::read(&t, topology, counts)?;
        failure.check(&t)?;
        Ok(failure)
    };
    tables.into_iter().map(read).collect()
}

fn slowdowns(root: &Section<'_>, counts: &Counts, level: Level) -> Result<Vec<Slowdown>> {
    let tables = root.tables("slowdown")?;
    if tables.len() > FAILURES_MAX {
        return Err(root.error("slowdown", format!("{} slowdowns: at most {FAILURES_MAX}", tables.len())));
    }
    let read = |t: Section<'_>| {
        let slowdown = Slowdown::read(&t, counts)?;
        slowdown.check(&t, level)?;
        Ok(slowdown)
    };
    tables.into_iter().map(read).collect()
}

/// Failures of a run, and slowdowns: each is a few events.
const FAILURES_MAX: usize = 4096;
/// Tables a scenario may show.
const TABLES_MAX: usize = 64;

/// The tables of a scenario: of all its variants together.
fn tables_of(doc: &Document) -> Result<Vec<Table>> {
    let root = Section::root(doc, &ROOT)?;
    let tables = root.tables("table")?;
    if tables.len() > TABLES_MAX {
        return Err(root.error("table", format!("{} tables: at most {TABLES_MAX}", tables.len())));
    }
    let axes = sweep::shown(doc)?;
    tables.iter().map(|t| Table::read(t, &axes)).collect()
}

/// A warning of an oversubscription that no variant has a use for.
fn idle_oversubscription(doc: &Document, scenario: &Scenario) -> Result<Option<Warning>> {
    const KEY: &str = "topology.oversubscription";
    let axes = sweep::shown(doc)?;
    let axis = |key: &str| axes.iter().map(|shown| &shown.axis).find(|axis| axis.key == key);
    let is_given = scenario.locations.line_of(KEY).is_some() || axis(KEY).is_some();
    let is_used = match axis("topology.routing") {
        Some(axis) => axis.values.iter().any(|value| value == "hierarchical"),
        None => scenario.topology.routing == Routing::Hierarchical,
    };
    let message = "`oversubscription` changes nothing: it is of routing = \"hierarchical\" alone";
    Ok((is_given && !is_used).then(|| scenario.locations.warning(KEY, message)))
}

/// Whether a sweep has an axis of such a key.
fn has_axis(doc: &Document, is_such: impl Fn(&str) -> bool) -> Result<bool> {
    Ok(sweep::shown(doc)?.iter().any(|shown| is_such(&shown.axis.key)))
}

/// A warning of an `[xco]` that nothing turns on.
fn idle_xco(doc: &Document, scenario: &Scenario) -> Result<Option<Warning>> {
    let is_given = Section::root(doc, &ROOT)?.has("xco");
    let says = scenario.locations.line_of("xco.enabled").is_some() || has_axis(doc, |key| key.starts_with("xco"))?;
    let message = "`[xco]` without `enabled = true` changes nothing";
    Ok((is_given && !says).then(|| scenario.locations.warning("xco", message)))
}

/// A warning of a watchdog of pauses that no variant has.
fn idle_watchdog(doc: &Document, scenario: &Scenario) -> Result<Option<Warning>> {
    /// Keys that decide about pauses.
    const DECIDE: [&str; 6] = [
        "pfc.enabled",
        "scenario.parameters",
        "scenario.flow_control",
        "scenario.hypervisor",
        "switch.sonic",
        "switch.sonic_port",
    ];
    let is_given = Section::root(doc, &ROOT)?.section("pfc")?.has("watchdog");
    // An axis may be a whole section.
    let decides = |axis: &str| {
        let is_in = |key: &&str| key.strip_prefix(axis).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        DECIDE.iter().any(is_in)
    };
    let may_pause = scenario.pfc.enabled || has_axis(doc, decides)?;
    let message = "`[pfc.watchdog]` has no effect: switches send no pauses; set pfc.enabled = true";
    Ok((is_given && !may_pause).then(|| scenario.locations.warning("pfc.watchdog", message)))
}

/// A warning of a default that is not what it was, for one version.
fn changed_default(doc: &Document, scenario: &Scenario) -> Result<Option<Warning>> {
    const KEY: &str = "topology.routing";
    let is_chosen = scenario.locations.line_of(KEY).is_some() || has_axis(doc, |key| key == KEY)?;
    let changed = !is_chosen
        && scenario.topology.routing == Routing::Hash
        && !matches!(scenario.topology.shape, Shape::Hpcc { .. })
        && scenario.topology.has_a_choice();
    let message = "`routing` is \"hash\" (ECMP) by default, as in today's fabrics; before version 2 of the defaults it was \
                   \"d-mod-k\": set it to choose, and run several seeds, because paths depend on them";
    Ok(changed.then(|| scenario.locations.warning("topology", message)))
}

impl Topology {
    /// Whether several paths may lead to a host.
    pub fn has_a_choice(&self) -> bool {
        match &self.shape {
            Shape::Xgft { w, .. } => w.iter().any(|&parents| parents > 1),
            Shape::Htsim { file } => file.content.as_pgft().1.iter().any(|&parents| parents > 1),
            Shape::Hpcc { .. } => true,
        }
    }

    /// The queues that a topology's file gives its switches, each with its tier, file and line.
    fn queues(&self) -> Vec<(&str, TierQueue)> {
        let Shape::Htsim { file } = &self.shape else { return Vec::new() };
        let of_tier = |t: &HtsimTier| [t.queue_down, t.queue_up].into_iter().flatten();
        file.content.tiers.iter().flat_map(of_tier).map(|queue| (file.path.as_str(), queue)).collect()
    }

    /// A queue of a topology's file that differs from the queue in the other direction.
    fn uneven_queue(&self, default: Bytes) -> Option<(&str, TierQueue)> {
        let Shape::Htsim { file } = &self.shape else { return None };
        let tiers = file.content.tiers.split_last().map_or(&[][..], |(_, below_top)| below_top);
        let size = |queue: Option<TierQueue>| queue.map_or(default, |queue| queue.size);
        let uneven = tiers.iter().find(|t| size(t.queue_down) != size(t.queue_up))?;
        uneven.queue_down.or(uneven.queue_up).map(|queue| (file.path.as_str(), queue))
    }

    /// Whether a topology's file gives the queues of every port of its switches.
    fn has_all_queues(&self) -> bool {
        let Shape::Htsim { file } = &self.shape else { return false };
        let tiers = &file.content.tiers;
        let is_given =
            |(i, t): (usize, &HtsimTier)| t.queue_down.is_some() && (t.queue_up.is_some() || i + 1 == tiers.len());
        tiers.iter().enumerate().all(is_given)
    }
}
