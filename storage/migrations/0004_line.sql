-- Who waits for a worker, by person: so that a claim finds each person's first runs however many wait of somebody else.
-- Both its key and its condition are said as no other index says them: a plan made while the table was small must not
-- take another one. Steps change no column that it names, and a run that is claimed at once is never in it.
create index runs_in_line on runs ((team_id || '/' || user_id), claimable_at)
    where state = 'running' and num_nulls(claim_token) = 1;

-- Who waits for a worker, in the order in which claims take them: a person's next run after everybody else's first one,
-- their claimed ones included; among the 2000 longest waiting.
create view waiting_line as
with queue as (
    select runs.id, team_id, user_id, claimable_at, false as waits
    from workers join runs on runs.claimed_by = workers.id
    where workers.died_at is null
    union all
    (select id, team_id, user_id, claimable_at, true from runs
     where state = 'running' and claim_token is null and crashes < 2 and recovery_attempts < 3
     order by claimable_at limit 2000)
), ranked as (
    select id, waits, claimable_at, row_number() over (partition by team_id, user_id order by waits, claimable_at) as turn
    from queue
)
select id, row_number() over (order by turn, claimable_at, id) as place from ranked where waits;
