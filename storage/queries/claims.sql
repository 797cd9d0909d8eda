-- name: claim_runs(worker_id, room, per_person, walked, now)
-- running (unclaimed) -> running (claimed), up to $2 runs. A person's next run counts after everybody else's first
-- one (their claimed runs included), and at most $3 of theirs are claimed at once (null: any number), so that one burst
-- starves nobody; then the longest waiting first. Runs that took a process down twice are left to a process of their
-- own. What is read is bounded by the people who wait, at most 100 of them, the next ones after the person $4, and not
-- by what they wait for; beside it the longest waiting of all. A row for each run; one with null when none was to be
-- had. Each says who was looked at last: null when nobody waits.
with recursive start as (
    -- Where the last look ended: a walk that always began at the first key would never come to the last ones.
    select person from (
        (select team_id || '/' || user_id as person from runs
         where state = 'running' and num_nulls(claim_token) = 1 and team_id || '/' || user_id > $4
         order by team_id || '/' || user_id limit 1)
        union all
        (select team_id || '/' || user_id from runs
         where state = 'running' and num_nulls(claim_token) = 1
         order by team_id || '/' || user_id limit 1)) next
    limit 1
), walk as (
    select person, 1 as nth from start
    union all
    (select other.person, walk.nth + 1
     from start cross join walk cross join lateral (
         (select team_id || '/' || user_id as person from runs
          where state = 'running' and num_nulls(claim_token) = 1 and team_id || '/' || user_id > walk.person
          order by team_id || '/' || user_id limit 1)
         union all
         (select team_id || '/' || user_id from runs
          where state = 'running' and num_nulls(claim_token) = 1
          order by team_id || '/' || user_id limit 1)
         limit 1) other
     where walk.nth < 100 and other.person <> start.person)
), people as (
    select distinct person from walk
), waiting as (
    select person, head.id, head.claimable_at
    from people cross join lateral (
        select id, claimable_at from runs
        where state = 'running' and num_nulls(claim_token) = 1 and crashes < 2 and recovery_attempts < 3
          and team_id || '/' || user_id = people.person
        order by team_id || '/' || user_id, claimable_at
        limit 1 + (4 * $2::integer + 64) / (select count(*) from people)) head
    union
    (select team_id || '/' || user_id, id, claimable_at from runs
     where state = 'running' and claim_token is null and crashes < 2 and recovery_attempts < 3
     order by claimable_at limit 2 * $2::integer + 32)
), queue as (
    select person, id, claimable_at, true as waits from waiting
    union all
    select team_id || '/' || user_id, runs.id, claimable_at, false
    from workers join runs on runs.claimed_by = workers.id
    where workers.died_at is null
), ranked as (
    select id, waits, claimable_at, row_number() over (partition by person order by waits, claimable_at) as turn
    from queue
), chosen as materialized (
    -- More than wanted, since other workers may be locking the very same ones.
    select id, turn, claimable_at from ranked where waits and turn <= coalesce($3::integer, turn)
    order by turn, claimable_at limit 4 * $2::integer + 64
), picked as (
    select runs.id
    from chosen join runs on runs.id = chosen.id
    -- Said so that no index of what waits answers it: each is found by its key.
    where runs.state || '' = 'running' and runs.claim_token is null and runs.crashes < 2 and runs.recovery_attempts < 3
    order by chosen.turn, chosen.claimable_at
    limit $2
    for update of runs skip locked
), claimed as (
    update runs set claim_token = gen_random_uuid(), claimed_by = $1
    from picked where runs.id = picked.id
    returning runs.*
), traced as (
    insert into trace (run_id, at, kind, body)
    select id, coalesce($5::timestamptz, now()), 'claimed', json_build_object('worker', $1::uuid)::text from claimed
)
select (select person from walk order by nth desc limit 1) as walked, to_json(claimed) as run
from (values (true)) always left join claimed on true
order by claimed.claimable_at;

-- name: claim_run(worker_id, run_id, now)
-- running (unclaimed) -> running (claimed), this very run. No row: it is not there to be claimed.
with claimed as (
    update runs set claim_token = gen_random_uuid(), claimed_by = $1
    where id = $2 and state = 'running' and claim_token is null
    returning *
), traced as (
    insert into trace (run_id, at, kind, body)
    select id, coalesce($3::timestamptz, now()), 'claimed', json_build_object('worker', $1::uuid)::text from claimed
)
select to_json(claimed) as run from claimed;

-- name: list_claims(worker_id)
-- What a worker holds, whether or not it knows.
select id, claim_token from runs where claimed_by = $1;

-- name: list_runs_to_be_alone(room)
-- Unclaimed runs that only a process of their own may claim, longest waiting first.
select id from runs
where state = 'running' and claim_token is null and (crashes >= 2 or recovery_attempts >= 3)
order by claimable_at limit $1;

-- name: read_place_in_line(run_id)
-- An unclaimed run's place among those who wait for a worker, as claims take them. No row: it does not wait, or only
-- behind the 2000 longest waiting.
select place::integer from waiting_line where id = $1;

-- name: refresh_line(room, every_s, now)
-- Progress lines of the first $1 runs in line that moved up a good way since they were told, not redrawn for $2
-- seconds. What was told is kept in ref: a place rounded up to one of 1, 2, 3, 4, 5, 7, 9, 12 ... (each about a quarter
-- more), so that one who moves up from the end is told a few times, not at each step.
with told as (
    select 'progress:' || id as place, 'line ' || ceil(power(1.25, ceil(ln(place) / ln(1.25)))) as told
    from waiting_line where waiting_line.place <= $1
), stale as (
    select o.place, told.told
    from told join outbox o on o.place = told.place
    where o.version = o.delivered_version and o.refused_at is null and o.ref <> told.told
      and o.updated_at <= coalesce($3::timestamptz, now()) - make_interval(secs => $2)
    for update of o skip locked
)
update outbox set ref = stale.told, version = version + 1, next_attempt_at = coalesce($3::timestamptz, now())
from stale
where outbox.place = stale.place
returning outbox.place;
