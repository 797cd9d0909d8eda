// Slack's own JavaScript framework as an app of the simulated workspace. The Python test acts as the
// people; this file is an ordinary Bolt app that knows nothing of the simulator.
const { App, LogLevel } = require('@slack/bolt');

const app = new App({
  token: process.env.SLACK_BOT_TOKEN,
  appToken: process.env.SLACK_APP_TOKEN,
  socketMode: true,
  logLevel: LogLevel.WARN,
  clientOptions: { slackApiUrl: process.env.SLACK_API_URL },
});

const card = [
  { type: 'section', text: { type: 'mrkdwn', text: '*Quote for Henderson*' } },
  {
    type: 'actions',
    block_id: 'decision',
    elements: [
      { type: 'button', action_id: 'approve', text: { type: 'plain_text', text: 'Approve' }, value: 'v1' },
      { type: 'button', action_id: 'decline', text: { type: 'plain_text', text: 'Decline' }, value: 'v1' },
    ],
  },
];

const reason = {
  type: 'modal',
  callback_id: 'reason',
  title: { type: 'plain_text', text: 'Decline' },
  submit: { type: 'plain_text', text: 'Decline' },
  private_metadata: 'kept',
  blocks: [
    {
      type: 'input',
      block_id: 'why',
      label: { type: 'plain_text', text: 'Why?' },
      element: { type: 'plain_text_input', action_id: 'text' },
    },
  ],
};

app.event('app_mention', async ({ event, say }) => {
  await say({ text: `heard: ${event.text}`, blocks: card, thread_ts: event.ts });
});

app.message(async ({ message, say }) => {
  await say(`dm: ${message.text}`);
});

app.action('approve', async ({ ack, body, client, respond }) => {
  await ack();
  await client.chat.update({ channel: body.channel.id, ts: body.message.ts, text: 'approved', blocks: [] });
  await respond({ text: `only you see this, ${body.user.name}`, response_type: 'ephemeral' });
});

app.action('decline', async ({ ack, body, client }) => {
  await ack();
  await client.views.open({ trigger_id: body.trigger_id, view: reason });
});

app.view('reason', async ({ ack, view, body, client }) => {
  const text = view.state.values.why.text.value;
  if (text === 'no') {
    await ack({ response_action: 'errors', errors: { why: 'say more' } });
    return;
  }
  await ack();
  await client.chat.postMessage({ channel: body.user.id, text: `declined: ${text} (${view.private_metadata})` });
});

app.command('/atlas', async ({ command, ack, respond }) => {
  await ack(`at once: ${command.text}`);
  await respond({ text: `later: ${command.text}`, response_type: 'in_channel' });
});

app.event('app_home_opened', async ({ event, client }) => {
  await client.views.publish({
    user_id: event.user,
    view: { type: 'home', blocks: [{ type: 'header', text: { type: 'plain_text', text: 'Nothing waits' } }] },
  });
});

(async () => {
  await app.start();
  process.on('SIGTERM', async () => {
    await app.stop();
    process.exit(0);
  });
  console.log('started');
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
