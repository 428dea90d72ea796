"""Text to token ids on the way to the engine core, token ids to text on the way back.

The core knows token ids only. Everything that needs a tokenizer lives here, on either side of `EngineCore.step`:

    tokenizer, chat_template -> input_processor -> [core] -> output_processor -> detokenizer -> outputs
"""
