//! scratch
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let ft = sluicenet_lab::bench::FatTree { k: a[1].parse().unwrap(), permutation: a[2].clone().into(), ms: a[3].parse().unwrap(), pfc: a.get(5).is_some_and(|x| x == "pfc"), congestion: "newreno".into(), seed: 1 };
    let i = std::sync::atomic::AtomicBool::new(false);
    match sluicenet_lab::bench::run(&ft, a[4].parse().unwrap(), None, &i) { Ok(f) => println!("{:?}", f), Err(e) => println!("{e}") }
}
