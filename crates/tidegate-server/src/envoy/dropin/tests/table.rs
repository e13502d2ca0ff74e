//! What envoyproxy/ratelimit is documented to answer, case by case: `table.txt`.

use super::{Service, domain};

#[test]
fn documented_behaviour() {
    let (mut cases, mut wrong) = (0, String::new());
    for section in include_str!("table.txt").split("\n== ").skip(1) {
        let (_, section) = section.split_once('\n').expect("limits");
        let mut parts = section.split("\n-- ");
        let limits = domain(&format!("\n{}", parts.next().expect("limits").trim_end()));
        for case in parts {
            let mut lines = case.lines().filter(|line| !line.is_empty());
            let name = lines.next().expect("a name");
            let service = Service::new(&limits);
            for step in lines {
                if let Some(seconds) = step.strip_prefix('+') {
                    service.advance(seconds.parse().expect(step));
                    continue;
                }
                let (request, expected) = step.split_once(" => ").expect(step);
                let got = service.say(request);
                if got != expected {
                    wrong += &format!("-- {name}\n{request} => {got}\n   instead of {expected}\n");
                }
            }
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "otherwise than written:\n{wrong}");
    assert!(cases >= 90, "only {cases} cases: is table.txt cut off?");
}
