//! One machine as several hosts: host ids for the ranks that this command starts or plans for.

use clap::Args;

use crate::failure::{Failure, Result};
use crate::run::job::Place;

/// How the ranks are spread over hosts that are made up.
#[derive(Args, Clone, Default)]
#[group(multiple = false)]
pub(crate) struct Placement {
    /// Pretend that the ranks are on this many hosts, in blocks of equal size.
    #[arg(long, value_name = "HOSTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) hosts: Option<u32>,
    /// Pretend that the ranks are on hosts with so many ranks each, such as 3,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks_per_host: Vec<u32>,
    /// Pretend that the ranks are on the hosts of these names, such as a,b,a,b.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) host_ids: Vec<String>,
}

impl Placement {
    /// The number of ranks that it means by itself.
    pub(crate) fn ranks(&self) -> Option<u32> {
        if !self.host_ids.is_empty() {
            return u32::try_from(self.host_ids.len()).ok();
        }
        (!self.ranks_per_host.is_empty()).then(|| self.ranks_per_host.iter().sum())
    }

    /// The place of each rank; none where the machine is what it is.
    pub(crate) fn places(&self, ranks: u32) -> Result<Vec<Place>> {
        let ids = self.host_ids(ranks)?.unwrap_or_default();
        Ok(ids.into_iter().map(Place::on_host).collect())
    }

    /// The host id of each rank; `None` where the machine is what it is.
    pub(crate) fn host_ids(&self, ranks: u32) -> Result<Option<Vec<String>>> {
        if let Some(meant) = self.ranks()
            && meant != ranks
        {
            return Err(Failure::usage(format!(
                "the hosts are given for {meant} ranks, and there are {ranks}"
            )));
        }
        if !self.host_ids.is_empty() {
            return Ok(Some(self.host_ids.clone()));
        }
        let sizes = match self.hosts {
            Some(hosts) if hosts > ranks => {
                return Err(Failure::usage(format!("{hosts} hosts for {ranks} ranks")));
            }
            Some(hosts) => {
                (0..hosts).map(|host| ranks / hosts + u32::from(host < ranks % hosts)).collect()
            }
            None if self.ranks_per_host.is_empty() => return Ok(None),
            None => self.ranks_per_host.clone(),
        };
        let ids = sizes
            .iter()
            .enumerate()
            .flat_map(|(host, size)| std::iter::repeat_n(format!("host-{host}"), *size as usize));
        Ok(Some(ids.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(placement: &Placement, ranks: u32) -> String {
        let ids = placement.host_ids(ranks).ok().flatten().unwrap_or_default();
        ids.iter().map(|id| id.trim_start_matches("host-")).collect()
    }

    #[test]
    fn ranks_are_dealt_in_blocks() {
        let hosts = |hosts| Placement { hosts: Some(hosts), ..Placement::default() };
        assert_eq!(ids(&hosts(2), 4), "0011");
        assert_eq!(ids(&hosts(3), 4), "0012");
        let uneven = Placement { ranks_per_host: vec![3, 1], ..Placement::default() };
        assert_eq!(ids(&uneven, 4), "0001");
        assert_eq!(uneven.ranks(), Some(4));
        let named = Placement {
            host_ids: ["a", "b", "a"].map(String::from).to_vec(),
            ..Placement::default()
        };
        assert_eq!(ids(&named, 3), "aba");
        assert!(named.host_ids(4).is_err());
        assert!(hosts(5).host_ids(4).is_err());
        assert_eq!(Placement::default().host_ids(4).ok(), Some(None));
    }
}
