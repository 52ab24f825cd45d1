//! `[ets]`: enhanced transmission selection at switches and adapters, and at uplinks of real switches.

use crate::error::Result;
use crate::setting::{Kind, Section};
use crate::settings;
use serde::{Serialize, Serializer};
use sluicenet_proto::cee::ets::{EtsConfig, EtsError, Group};
use sluicenet_proto::frame::PrioritySet;

settings! {
    /// priorities that share a part of the bandwidth
    struct EtsGroup in "group" (s) {
        /// the priorities
        priorities: Vec<u8> [0..=7],
        /// percent of the bandwidth that strict priorities leave
        bandwidth: Option<u8> [1..=100],
        /// its share beside the weights of the other groups, instead of bandwidth, as in SONiC's SCHEDULER
        weight: Option<u8> [1..=100],
    }
}

settings! {
    /// enhanced transmission selection (802.1Qaz) at every output to a link of the network; round robin without it
    pub model struct Ets in "ets" (s) {
        /// priorities that are served before the groups, the highest first; default none
        let strict: Option<Vec<u8>> [0..=7],
        /// priorities with the same share of the bandwidth; the shares are 100 in all
        let group as (Kind::Tables(&[EtsGroup::SPEC])),
        /// The settings of an output; none without groups.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize")]
        field config: Option<EtsConfig> = read(s, strict.into_iter().flatten().collect())?,
    }
}

impl Ets {
    /// The settings of an output in the section `[ets]` of any file.
    ///
    /// # Errors
    /// A key is unknown or has no valid value, or the groups do not fit together.
    pub fn of(s: &Section<'_>) -> Result<Option<EtsConfig>> {
        Ets::read(s).map(|ets| ets.config)
    }

    /// Whether outputs serve their priorities round robin.
    pub(crate) fn is_off(&self) -> bool {
        self.config.is_none()
    }
}

fn serialize<S: Serializer>(config: &Option<EtsConfig>, s: S) -> core::result::Result<S::Ok, S::Error> {
    let Some(config) = config else { return s.serialize_none() };
    let groups: Vec<(u8, u8)> = config.groups().iter().map(|g| (g.priorities.0, g.bandwidth)).collect();
    (config.strict().0, groups).serialize(s)
}

fn read(s: &Section<'_>, strict: PrioritySet) -> Result<Option<EtsConfig>> {
    let tables = s.tables("group")?;
    if tables.is_empty() && strict.is_empty() {
        return Ok(None);
    }
    let mut groups = Vec::new();
    let is_weighted = tables.iter().any(|t| t.has("weight"));
    for t in &tables {
        let EtsGroup { priorities, bandwidth, weight } = EtsGroup::read(t)?;
        if bandwidth.is_some() && is_weighted {
            let error = t.error("bandwidth", "`bandwidth` beside `weight` of a group");
            return Err(error.hint("all groups have a weight, or all have a bandwidth in percent"));
        }
        let share = if is_weighted { weight } else { bandwidth };
        let bandwidth = share.ok_or_else(|| t.missing(if is_weighted { "weight" } else { "bandwidth" }))?;
        groups.push(Group { priorities: priorities.into_iter().collect(), bandwidth });
    }
    let config = if is_weighted { EtsConfig::weighted(strict, groups) } else { EtsConfig::new(strict, groups) };
    config.map(Some).map_err(|e| match e {
        EtsError::Sum(sum) => {
            s.error("group", format!("the bandwidths of the groups are {sum} % in all")).expected("100 %")
        }
        EtsError::NoBandwidth => s.error("group", "a group has no bandwidth").expected("at least 1 %"),
        EtsError::NoPriority => {
            s.error("group", "a group has no priorities").hint("name the priorities that share its bandwidth")
        }
        EtsError::Missing(priority) => s
            .error_at(&["group", "strict"], format!("priority {priority} is in no group, and not strict"))
            .hint("every priority from 0 to 7 belongs to `strict` or to one group"),
        EtsError::Twice(priority) => s
            .error_at(&["group", "strict"], format!("priority {priority} stands here twice"))
            .hint("every priority from 0 to 7 belongs to `strict` or to one group"),
    })
}
