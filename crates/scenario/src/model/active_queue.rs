//! Active queue management at the outputs of switches: RED, WRED profiles, a threshold.

use super::{ParameterSet, Pfc, SharedBuffer, Switch};
use crate::error::{Result, Warning};
use crate::setting::Section;
use crate::units::{BUFFER, Bytes};
use crate::{choices, settings};
use sluicenet_proto::frame::PrioritySet;

/// Profiles a scenario may have: each is for one priority at least.
const PROFILES_MAX: usize = 8;

choices! {
    /// The treatment of a frame that cannot be marked.
    pub enum NotCapable {
        /// It is dropped.
        Drop = "drop",
        /// It goes on.
        Forward = "forward",
    }
}

choices! {
    /// The treatment of frames from the maximum threshold on.
    pub enum Above {
        /// They are marked if their transport supports ECN.
        Mark = "mark",
        /// They are dropped, even if their transport supports ECN.
        Drop = "drop",
    }
}

settings! {
    /// random early detection (Floyd and Jacobson 1993) at every switch output
    #[derive(Copy)]
    pub model struct Red in "red" (s, set: ParameterSet, fixed: Option<bool>) {
        /// whether outputs select frames by the average length of their queue; selected frames are marked or dropped
        enabled: bool = fixed.unwrap_or(false),
        /// the average queue length from which frames are selected
        // Table 2.1.
        min_threshold: Bytes [BUFFER] = Bytes(25_600),
        /// the average queue length from which every frame is selected
        max_threshold: Bytes [BUFFER] = Bytes(76_800),
        /// the weight of a frame's queue length in the average
        weight: f64 [1e-6..=1.0] = 0.002,
        /// the probability just below max_threshold
        max_probability: f64 [1e-6..=1.0] = 0.02,
        /// whether frames since the last selected one raise the probability, so that the gaps are spread evenly
        count: bool = true,
        /// frames whose transport does not support ECN; default drop, in lossless priorities forward
        // The source's RED lets control segments "move freely" (2.6.2). [d]
        not_ecn_capable: Option<NotCapable> = set.plain_or(None, Some(NotCapable::Forward)),
        /// frames from max_threshold on; default drop, in lossless priorities mark
        above: Option<Above> = set.plain_or(None, Some(Above::Mark)),
    }
}

impl Red {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>, fixed: Option<bool>, pfc: &Pfc) -> Result<()> {
        if fixed.is_some_and(|fixed| fixed != self.enabled) {
            return Err(s
                .error("enabled", "scenario.congestion_management says whether there is RED")
                .hint("remove `enabled` or congestion_management"));
        }
        ordered(s, ["min_threshold", "max_threshold"], (self.min_threshold, self.max_threshold))?;
        if self.enabled && pfc.enabled {
            let drops = [
                ("not_ecn_capable", self.not_ecn_capable == Some(NotCapable::Drop)),
                ("above", self.above == Some(Above::Drop)),
            ];
            if let Some((key, _)) = drops.iter().find(|drop| drop.1) {
                let priority = pfc.lossless.trailing_zeros();
                let message = format!("RED would drop frames of priority {priority}, which is lossless");
                return Err(s.error(key, message).hint(format!("remove `{key}`: lossless priorities are only marked")));
            }
        }
        Ok(())
    }
}

fn ordered(s: &Section<'_>, [low, high]: [&str; 2], (min, max): (Bytes, Bytes)) -> Result<()> {
    if min <= max {
        return Ok(());
    }
    let message = format!("{low} ({} B) is above {high} ({} B)", min.0, max.0);
    Err(s.error_at(&[low, high], message).hint("selection begins at the lower threshold"))
}

choices! {
    /// The colours of frames that are marked. Frames of a simulation are green.
    pub enum WredEcn {
        /// None.
        None = "ecn_none",
        /// Green ones.
        Green = "ecn_green",
        /// All.
        All = "ecn_all",
    }
}

settings! {
    /// a WRED profile, with the names of SONiC's WRED_PROFILE; it replaces `red` and `switch.ecn_threshold` for its priorities
    pub model struct Wred in "wred" (s) {
        /// the priorities that it is for
        let priorities: Vec<u8> [0..=7],
        /// The priorities that it is for, bit p for priority p.
        field priorities: u8 = priorities.into_iter().collect::<PrioritySet>().0,
        /// the queue length from which frames are selected
        green_min_threshold: Bytes [BUFFER],
        /// the queue length from which every frame is selected
        green_max_threshold: Bytes [BUFFER],
        /// the probability just below green_max_threshold, in percent; default 100
        green_drop_probability: u32 [0..=100] = 100,
        /// whether selected frames that are not marked are dropped; default true
        wred_green_enable: bool = true,
        /// the frames that are marked if their transport supports ECN; default ecn_none
        ecn: WredEcn = WredEcn::None,
    }
}

impl Wred {
    /// Checks how the keys relate.
    fn check(&self, s: &Section<'_>, pfc: &Pfc) -> Result<()> {
        if self.priorities == 0 {
            return Err(s.error("priorities", "this profile is for no priority"));
        }
        ordered(
            s,
            ["green_min_threshold", "green_max_threshold"],
            (self.green_min_threshold, self.green_max_threshold),
        )?;
        if !self.wred_green_enable && self.ecn == WredEcn::None {
            return Err(s
                .error_at(&["wred_green_enable", "ecn"], "this profile neither drops nor marks")
                .hint("set `wred_green_enable = true` or `ecn = \"ecn_all\"`"));
        }
        let lossless = self.priorities & if pfc.enabled { pfc.lossless } else { 0 };
        if self.wred_green_enable && lossless != 0 {
            let priority = lossless.trailing_zeros();
            let message = format!("WRED would drop frames of priority {priority}, which is lossless");
            return Err(s
                .error_at(&["wred_green_enable", "priorities"], message)
                .hint("set `wred_green_enable = false` and `ecn = \"ecn_all\"`: lossless priorities are only marked"));
        }
        Ok(())
    }
}

/// The WRED profiles of a scenario.
///
/// # Errors
/// A profile that is none, or a priority with two of them.
pub(crate) fn profiles(root: &Section<'_>, pfc: &Pfc) -> Result<Vec<Wred>> {
    let tables = root.tables("wred")?;
    if tables.len() > PROFILES_MAX {
        return Err(root.error("wred", format!("{} profiles: at most {PROFILES_MAX}", tables.len())));
    }
    let mut all: Vec<Wred> = Vec::new();
    for t in &tables {
        let profile = Wred::read(t)?;
        profile.check(t, pfc)?;
        let twice = all.iter().fold(0, |set, other| set | other.priorities) & profile.priorities;
        if twice != 0 {
            let priority = twice.trailing_zeros();
            return Err(t.error("priorities", format!("priority {priority} has two WRED profiles")));
        }
        all.push(profile);
    }
    Ok(all)
}

/// Warns of marks that come after pauses.
///
/// # Errors
/// None: the tables have been read before.
pub(crate) fn warn(
    root: &Section<'_>,
    (red, wred, switch): (&Red, &[Wred], &Switch),
    (pfc, buffer): (&Pfc, &SharedBuffer),
    warnings: &mut Vec<Warning>,
) -> Result<()> {
    // A pool has no fixed threshold.
    if !pfc.enabled || buffer.is_on() {
        return Ok(());
    }
    let mut thresholds = Vec::new();
    if red.enabled {
        thresholds.push((root.section("red")?.line("min_threshold"), "red.min_threshold", red.min_threshold, u8::MAX));
    }
    if let Some(k) = switch.ecn_threshold {
        thresholds.push((root.section("switch")?.line("ecn_threshold"), "switch.ecn_threshold", k, u8::MAX));
    }
    for (t, profile) in root.tables("wred")?.iter().zip(wred) {
        let at = t.line("green_min_threshold");
        thresholds.push((at, "green_min_threshold", profile.green_min_threshold, profile.priorities));
    }
    for ((file, line), key, threshold, priorities) in thresholds {
        if priorities & pfc.lossless != 0 && threshold >= pfc.xoff {
            let message = format!(
                "{key} ({} B) is not below pfc.xoff ({} B): a queue that one input fills pauses its sender before it marks",
                threshold.0, pfc.xoff.0
            );
            warnings.push(Warning { file, line, message });
        }
    }
    Ok(())
}

/// Whether any output marks frames.
pub(crate) fn marks(red: &Red, wred: &[Wred], switch: &Switch) -> bool {
    red.enabled || switch.ecn_threshold.is_some() || wred.iter().any(|profile| profile.ecn != WredEcn::None)
}

choices! {
    /// The configurations of Crisan 2014, section 2.6.
    pub enum CongestionManagement {
        /// None.
        Base = "base",
        /// RED with ECN.
        Red = "red",
        /// QCN with Q_eq = 20 KB, 20 % of the queue, as the standard recommends.
        Qcn20 = "qcn-20",
        /// QCN with Q_eq = 66 KB.
        Qcn66 = "qcn-66",
    }
}

impl CongestionManagement {
    /// Whether there is RED.
    pub(crate) fn red(self) -> bool {
        self == CongestionManagement::Red
    }

    /// Q_eq, if there is QCN.
    pub(crate) fn set_point(self) -> Option<Bytes> {
        match self {
            CongestionManagement::Base | CongestionManagement::Red => None,
            CongestionManagement::Qcn20 => Some(Bytes(20_000)),
            CongestionManagement::Qcn66 => Some(Bytes(66_000)),
        }
    }
}
