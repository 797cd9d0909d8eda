// Slack's :shortcodes: that people and bots use most. Unknown ones stay as typed.

const LIST = `white_check_mark ✅|heavy_check_mark ✔️|ballot_box_with_check ☑️|x ❌|negative_squared_cross_mark ❎|no_entry ⛔|no_entry_sign 🚫
warning ⚠️|rotating_light 🚨|exclamation ❗|grey_exclamation ❕|question ❓|grey_question ❔|information_source ℹ️|bangbang ‼️|octagonal_sign 🛑
hourglass ⌛|hourglass_flowing_sand ⏳|stopwatch ⏱️|alarm_clock ⏰|clock1 🕐|clock3 🕒|watch ⌚|calendar 📅|date 📅|spiral_calendar_pad 🗓️
arrow_right ➡️|arrow_left ⬅️|arrow_up ⬆️|arrow_down ⬇️|arrows_counterclockwise 🔄|repeat 🔁|leftwards_arrow_with_hook ↩️|arrow_forward ▶️|double_vertical_bar ⏸️|black_square_for_stop ⏹️
red_circle 🔴|large_green_circle 🟢|large_yellow_circle 🟡|large_orange_circle 🟠|large_blue_circle 🔵|large_purple_circle 🟣|white_circle ⚪|black_circle ⚫
smile 😄|smiley 😃|grinning 😀|grin 😁|joy 😂|slightly_smiling_face 🙂|wink 😉|blush 😊|thinking_face 🤔|sweat_smile 😅|cry 😢|sob 😭|sunglasses 😎|heart_eyes 😍|confused 😕|worried 😟|face_with_monocle 🧐|neutral_face 😐|sleeping 😴|robot_face 🤖|ghost 👻|see_no_evil 🙈
+1 👍|thumbsup 👍|-1 👎|thumbsdown 👎|ok_hand 👌|wave 👋|raised_hands 🙌|raised_hand ✋|hand ✋|clap 👏|pray 🙏|muscle 💪|point_right 👉|point_left 👈|point_up ☝️|point_down 👇|handshake 🤝|eyes 👀|writing_hand ✍️
heart ❤️|blue_heart 💙|green_heart 💚|yellow_heart 💛|broken_heart 💔|star ⭐|star2 🌟|sparkles ✨|fire 🔥|boom 💥|zap ⚡|tada 🎉|confetti_ball 🎊|trophy 🏆|dart 🎯|rocket 🚀|bulb 💡|bell 🔔|no_bell 🔕|mega 📣|loudspeaker 📢|speech_balloon 💬|thought_balloon 💭
memo 📝|pencil ✏️|pencil2 ✏️|page_facing_up 📄|page_with_curl 📃|scroll 📜|clipboard 📋|bookmark 🔖|bookmark_tabs 📑|paperclip 📎|link 🔗|pushpin 📌|round_pushpin 📍|file_folder 📁|card_index 📇|receipt 🧾|envelope ✉️|email 📧|incoming_envelope 📨|inbox_tray 📥|outbox_tray 📤|package 📦|label 🏷️
moneybag 💰|dollar 💵|euro 💶|credit_card 💳|chart_with_upwards_trend 📈|chart_with_downwards_trend 📉|bar_chart 📊|briefcase 💼|shopping_trolley 🛒|truck 🚚|factory 🏭|office 🏢|house 🏠|globe_with_meridians 🌐|earth_africa 🌍|world_map 🗺️
lock 🔒|unlock 🔓|closed_lock_with_key 🔐|key 🔑|shield 🛡️|mag 🔍|mag_right 🔎|wrench 🔧|hammer_and_wrench 🛠️|hammer 🔨|gear ⚙️|nut_and_bolt 🔩|electric_plug 🔌|battery 🔋|computer 💻|keyboard ⌨️|iphone 📱|floppy_disk 💾|bug 🐛|construction 🚧|recycle ♻️|wastebasket 🗑️|broom 🧹|scales ⚖️
bust_in_silhouette 👤|busts_in_silhouette 👥|man 👨|woman 👩|crown 👑|coffee ☕|pizza 🍕|cake 🍰|seedling 🌱|evergreen_tree 🌲|sun_with_face 🌞|sunny ☀️|cloud ☁️|umbrella ☔|snowflake ❄️|rainbow 🌈|ocean 🌊|skull 💀|100 💯
one 1️⃣|two 2️⃣|three 3️⃣|four 4️⃣|five 5️⃣|zero 0️⃣|heavy_plus_sign ➕|heavy_minus_sign ➖|new 🆕|ok 🆗|sos 🆘|id 🆔|end 🔚|soon 🔜`;

const KNOWN = new Map(LIST.split(/[|\n]/).map((entry) => entry.split(" ")));

/** The character for a shortcode such as "tada" (skin tones ignored), or null. */
export function emoji(name) { return KNOWN.get(name.split("::")[0]) ?? null; }

/** Replace known :shortcodes: in literal text. */
export function withEmoji(text) {
  return text.replace(/:([a-z0-9_+-]+):(?::skin-tone-\d:)?/g, (whole, name) => emoji(name) ?? whole);
}
