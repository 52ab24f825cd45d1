//! How long message metadata takes between two servers: as long as the fastest frame over their own links. No frame between
//! them is faster, and no other link of the world counts.

/// A server's own links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The shortest time that a frame takes to leave the server, and to reach it, in picoseconds.
    out: u64,
    into: u64,
    /// Whether a link joins it to another server.
    beside_server: bool,
}

/// The own links of every server: one entry if all servers are alike, which is the rule.
#[derive(Debug)]
pub struct Accesses(Vec<Access>);

impl Accesses {
    /// Servers without links so far.
    pub fn new(hosts: u32) -> Accesses {
        Accesses(vec![Access { out: u64::MAX, into: u64::MAX, beside_server: false }; hosts as usize])
    }

    /// A link from `from` to `to`, on which a frame takes at least `shortest` picoseconds.
    pub fn add(&mut self, from: u32, to: u32, shortest: u64) {
        let hosts = self.0.len();
        let joins_servers = (from.max(to) as usize) < hosts;
        if let Some(access) = self.0.get_mut(from as usize) {
            access.out = access.out.min(shortest);
            access.beside_server |= joins_servers;
        }
        if let Some(access) = self.0.get_mut(to as usize) {
            access.into = access.into.min(shortest);
            access.beside_server |= joins_servers;
        }
    }

    /// Forgets all entries but the first if all are alike.
    pub fn compact(mut self) -> Accesses {
        if self.0.iter().all(|access| *access == self.0[0]) {
            self.0.truncate(1);
            self.0.shrink_to_fit();
        }
        self
    }

    /// Links between the two nearest servers, 2 at most.
    pub fn apart(&self) -> u64 {
        if self.0.iter().any(|access| access.beside_server) { 1 } else { 2 }
    }

    /// The time from server to server in picoseconds.
    pub fn time(&self, from: u32, to: u32) -> u64 {
        let of = |server: u32| self.0[(server as usize).min(self.0.len() - 1)];
        let (from, to) = (of(from), of(to));
        // Two servers with links to servers may be joined: then a frame passes one link.
        if from.beside_server && to.beside_server { from.out.max(to.into) } else { from.out + to.into }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_links_of_the_two_servers_count() {
        // Servers 0 to 3 at switches 4 and 5, server 0 with two links.
        let links = [(0, 4, 10), (0, 5, 7), (1, 4, 20), (2, 5, 5), (3, 5, 5), (4, 5, 1)];
        let mut accesses = Accesses::new(4);
        for (a, b, shortest) in links {
            accesses.add(a, b, shortest);
            accesses.add(b, a, shortest + 100);
        }
        let accesses = accesses.compact();
        assert_eq!(accesses.0.len(), 4);
        assert_eq!((accesses.time(0, 1), accesses.time(1, 0), accesses.time(3, 2)), (127, 127, 110));
    }

    #[test]
    fn servers_that_are_alike_share_an_entry() {
        let mut accesses = Accesses::new(3);
        for server in 0..3 {
            accesses.add(server, 3, 10);
            accesses.add(3, server, 12);
        }
        let accesses = accesses.compact();
        assert_eq!((accesses.0.len(), accesses.time(0, 2), accesses.apart()), (1, 22, 2));
    }

    #[test]
    fn a_frame_between_joined_servers_is_not_faster() {
        // 0 - 1 - 2, each link with its own delay, and server 3 at a switch.
        let mut accesses = Accesses::new(4);
        for (a, b, shortest) in [(0, 1, 30), (1, 2, 40), (3, 4, 10), (4, 2, 10)] {
            accesses.add(a, b, shortest);
            accesses.add(b, a, shortest);
        }
        assert!(accesses.time(0, 1) <= 30 && accesses.time(1, 2) <= 40);
        assert_eq!((accesses.time(3, 1), accesses.apart()), (40, 1));
    }
}
